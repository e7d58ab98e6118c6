"""Steps of the `speculators` package; runs in the interpreter that has it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "parity"))

import torch
import train_job as job
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import Qwen3Config
from worker_speculators import MODELS, loss_of

FACTS = {
    "loss": f'{{"ce": {job.CE_WEIGHT}, "tv": {job.TV_WEIGHT}}}',
    "gamma": job.GAMMA,
    "passes": job.PASSES,
    "w_anchor": job.W_ANCHOR,
    "w_consistency": job.W_CONSISTENCY,
}


def build(model: str, attention: str) -> Any:
    """Their model with the job's sizes and weights."""
    config_class, model_class = MODELS[model]
    layer = Qwen3Config(
        hidden_size=job.HIDDEN,
        vocab_size=job.VOCAB,
        num_hidden_layers=job.LAYERS,
        intermediate_size=job.INTERMEDIATE,
        num_attention_heads=job.HEADS,
        num_key_value_heads=job.KV_HEADS,
        head_dim=job.HEAD_DIM,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": job.THETA},
        attn_implementation=attention,
    )
    config = config_class(
        transformer_layer_config=layer,
        speculators_config=SpeculatorsConfig(
            algorithm=model,
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=4)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=[]),
        ),
        block_size=job.BLOCK,
        mask_token_id=job.MASK_ID,
        draft_vocab_size=job.VOCAB,
        aux_hidden_state_layer_ids=list(range(job.NUM_FEATURES)),
        sample_from_anchor=False,
        **({"xpress_rank": job.RANK} if model == "xpress" else {}),
    )
    built = model_class(config)
    with torch.no_grad():
        for name, tensor in built.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(job.noise(name, *tensor.shape))
    return built.train()


def prepare(work: job.Work) -> Callable[[], float]:
    model, tensors = build(work.model, work.variant), job.batch(work.anchors)
    facts = {**FACTS, "model": work.model}

    def step() -> float:
        # The anchors of this job: batch_arguments puts them in place of random ones.
        model.zero_grad(set_to_none=True)
        loss, _metrics = loss_of(model, tensors, facts)
        loss.backward()
        return float(loss.detach())

    return step


if __name__ == "__main__":
    job.serve(prepare)
