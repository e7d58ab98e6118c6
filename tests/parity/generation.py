"""A tiny random Qwen3 target with a drafter that was fitted to it, so that drafts are accepted."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from xpress_exp.builders import DraftModel
from xpress_exp.data.anchor import anchor_candidates
from xpress_exp.decode import decode_autoregressive, decode_speculative
from xpress_exp.drafter import DFlashDrafter, block_mask
from xpress_exp.head import NoHead
from xpress_exp.solver import ParallelSolver
from xpress_exp.target import TinyTarget, tiny_target
from xpress_exp.types import ModelDims, SampleTrace, SlotConvention, SlotMap
from xpress_exp.verifier import GreedyVerifier

PROMPTS = {"one token": [7], "longer": [5, 9, 4, 13, 6, 6, 8], "third": [11, 30, 12]}
BLOCK, MASK_ID, LIMIT, STEPS = 5, 3, 40, 150
LAYER_IDS = (0, 1)
DRAFTER: dict[str, Any] = {
    "num_layers": 2,
    "intermediate_size": 48,
    "num_heads": 2,
    "num_kv_heads": 1,
}


@dataclass(frozen=True)
class Generation:
    """plain and speculative: our traces at temperature 0, by prompt name."""

    target: TinyTarget
    model: DraftModel
    plain: dict[str, SampleTrace]
    speculative: dict[str, SampleTrace]
    prompts = PROMPTS
    limit = LIMIT

    def full_rounds(self, name: str) -> list[int]:
        """Tokens that each round committed, up to the first that could not hold a whole block.

        A block of B tokens starts at the anchor, the last of the tokens there are.
        """
        kept, tokens = [], 1
        for item in self.speculative[name].rounds:
            if tokens - 1 + BLOCK > self.limit:
                break
            kept.append(item.committed)
            tokens += item.committed
        return kept

    def target_weights(self) -> dict[str, Tensor]:
        return dict(self.target._model.state_dict())

    def target_facts(self) -> dict[str, Any]:
        names = (
            *("hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads"),
            *("num_key_value_heads", "head_dim", "intermediate_size", "tie_word_embeddings"),
            *("rms_norm_eps", "rope_parameters", "pad_token_id", "bos_token_id", "eos_token_id"),
        )
        return {name: getattr(self.target.config, name) for name in names}

    def drafter_facts(self) -> dict[str, Any]:
        facts = self.target_facts()
        names = ("hidden_size", "vocab_size", "head_dim", "rms_norm_eps", "rope_parameters")
        return {
            **{name: facts[name] for name in names},
            "num_hidden_layers": DRAFTER["num_layers"],
            "intermediate_size": DRAFTER["intermediate_size"],
            "num_attention_heads": DRAFTER["num_heads"],
            "num_key_value_heads": DRAFTER["num_kv_heads"],
        }

    def draft_facts(self) -> dict[str, Any]:
        return {
            "block_size": BLOCK,
            "mask_token_id": MASK_ID,
            "target_layer_ids": list(LAYER_IDS),
        }


@functools.cache
def trained_generation() -> Generation:
    """Raises RuntimeError when the drafter is accepted too rarely for the comparison to matter."""
    target = tiny_target("qwen3", layer_ids=LAYER_IDS, seed=3)
    model = _draft_model(target)
    plain = {
        name: decode_autoregressive(
            target, ids, temperature=0.0, max_new_tokens=LIMIT, generator=None
        )
        for name, ids in PROMPTS.items()
    }
    _fit(model, target, plain)
    spoken = {
        name: decode_speculative(
            target,
            model,
            ParallelSolver(),
            GreedyVerifier(),
            ids,
            temperature=0.0,
            draft_temperature=0.0,
            max_new_tokens=LIMIT,
            generator=None,
        )
        for name, ids in PROMPTS.items()
    }
    made = Generation(target, model, plain, spoken)
    accepted = {item.accepted for trace in spoken.values() for item in trace.rounds}
    if not {0, BLOCK - 1} <= accepted:
        raise RuntimeError(f"rounds accept {sorted(accepted)}; none and all must occur")
    return made


def _draft_model(target: TinyTarget) -> DraftModel:
    slots = SlotMap(SlotConvention.FILL_IN, BLOCK)
    dims = ModelDims(target.hidden_size, target.vocab_size, target.vocab_size, slots)
    torch.manual_seed(1)
    drafter = DFlashDrafter(
        dims,
        feature_size=target.feature_size,
        token_embedding=target.embedding,
        rope_inv_freq=target.rope_inv_freq,
        rope_scale=target.rope_scale,
        head_dim=2 * len(target.rope_inv_freq),
        mask_token_id=MASK_ID,
        **DRAFTER,
    )
    return DraftModel(drafter, NoHead(dims, target.embedding), target.lm_head, None).eval()


def _fit(model: DraftModel, target: TinyTarget, texts: dict[str, SampleTrace]) -> None:
    """A few steps of cross-entropy on the first half of each greedy text: some drafts will be
    right, and not all."""
    optimizer = torch.optim.Adam(model.drafter.parameters(), lr=5e-3)
    for step in range(STEPS):
        name = list(texts)[step % len(texts)]
        ids = torch.tensor([*PROMPTS[name], *texts[name].tokens[: LIMIT // 2]])
        document = torch.zeros_like(ids)
        spoken = torch.arange(len(ids)) >= len(PROMPTS[name])
        anchors = anchor_candidates(spoken, document).nonzero()[:, 0]
        anchors = anchors[anchors + BLOCK <= len(ids)]
        hidden = model.drafter(
            target.forward(ids[None], num_logits=0).features[0],
            torch.arange(len(ids)),
            ids[anchors],
            anchors,
            block_mask(anchors, document, BLOCK),
        )
        labels = ids[anchors[:, None] + torch.arange(1, BLOCK)]
        logits = model.base_logits(hidden[:, 1:])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
