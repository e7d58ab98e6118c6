"""Runs in the interpreter that has `speculators`: its classes on the weights of a request."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.losses import resolve_loss_config
from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
from speculators.models.dflash import core as dflash_core
from speculators.models.dflash.attention import create_anchor_block_mask_mod
from speculators.models.dspark import DSparkDraftModel, DSparkSpeculatorConfig
from speculators.models.dspark.model_definitions import MarkovHead
from speculators.models.xpress import XPressDraftModel, XPressSpeculatorConfig
from speculators.models.xpress.model_definitions import XPressRefinerHead
from speculators.proposals.greedy import GreedyTokenProposalConfig
from tensors import float64_throughout, gradients, group, serve
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_mask
from transformers import Qwen3Config

MODELS: dict[str, tuple[Any, Any]] = {
    "dflash": (DFlashSpeculatorConfig, DFlashDraftModel),
    "dspark": (DSparkSpeculatorConfig, DSparkDraftModel),
    "xpress": (XPressSpeculatorConfig, XPressDraftModel),
}
Tensors = dict[str, Tensor]
Facts = dict[str, Any]


def build(tensors: Tensors, facts: Facts) -> Any:
    """Their model with the request's weights, in the request's dtype."""
    config_class, model_class = MODELS[facts["model"]]
    options = facts["options"]
    config = config_class(
        transformer_layer_config=Qwen3Config(**facts["architecture"], attn_implementation="sdpa"),
        speculators_config=SpeculatorsConfig(
            algorithm=facts["model"],
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=4)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=[]),
        ),
        **options,
    )
    weights = group(tensors, "weight")
    model = model_class(config).to(weights["fc.weight"].dtype)
    model.load_state_dict(weights)
    return model.eval()


def batch_arguments(tensors: Tensors) -> dict[str, Any]:
    """The packed row, with the request's anchors in place of random ones."""
    anchors = tensors["anchors"]
    valid = torch.ones_like(anchors, dtype=torch.bool)
    dflash_core.select_anchors = lambda *_arguments: (anchors, valid)
    return {
        "hidden_states": tensors["features"][None],
        "input_ids": tensors["input_ids"][None],
        "loss_mask": tensors["loss_mask"][None],
        "verifier_last_hidden_states": tensors["raw_hidden"][None],
        "document_ids": tensors["document_ids"][None],
        "position_ids": tensors["position_ids"][None],
        "max_anchors": len(anchors),
    }


def trained(module: nn.Module) -> Tensors:
    frozen = ("embed_tokens", "lm_head", "verifier")
    return {k: v for k, v in module.named_parameters() if not k.startswith(frozen)}


def mask(tensors: Tensors, facts: Facts) -> Tensors:
    documents, anchors = tensors["document_ids"], tensors["anchors"]
    rule, queries, keys = create_anchor_block_mask_mod(
        documents, len(documents), anchors, facts["block_size"]
    )
    found = create_mask(rule, None, None, queries, keys, device="cpu")
    return {"mask": found[0, 0]}


def backbone(model: Any, tensors: Tensors) -> tuple[Tensor, ...]:
    """Hidden states, base logits and target logits, each [n, B, .]."""
    hidden, logits, targets, _mask, _indices = model._backbone_forward(**batch_arguments(tensors))
    size = (len(tensors["anchors"]), model.block_size)
    return tuple(value[0].unflatten(0, size) for value in (hidden, logits, targets))


def backbone_forward(tensors: Tensors, facts: Facts) -> Tensors:
    hidden, logits, targets = backbone(build(tensors, facts), tensors)
    return {"hidden": hidden, "base_logits": logits, "target_logits": targets}


def backbone_gradient(tensors: Tensors, facts: Facts) -> Tensors:
    model = build(tensors, facts)
    with float64_throughout():
        hidden, _logits, _targets = backbone(model, tensors)
        body = {k: v for k, v in trained(model).items() if "_head." not in k}
        return gradients((hidden * tensors["cotangent"]).sum(), body)


def head_bias(tensors: Tensors, facts: Facts) -> tuple[nn.Module, Tensor, Tensor]:
    """(head, hidden leaf, bias [n, B, V])."""
    weights = group(tensors, "weight")
    hidden = tensors["hidden"].requires_grad_()
    vocab, size = tensors["cotangent"].shape[-1], hidden.shape[-1]
    shape = {"verifier_vocab_size": vocab, "draft_vocab_size": vocab, "hidden_size": size}
    head: Any
    if facts["head"] == "xpress":
        head = XPressRefinerHead(**shape, block_size=hidden.shape[1], rank=facts["rank"])
    else:
        head = MarkovHead(**shape, markov_rank=facts["rank"], head_type=facts["head"])
    head.to(hidden.dtype).load_state_dict(weights)
    return head, hidden, head.block_bias(prev_token_ids=tensors["previous"], hidden_states=hidden)


def head_forward(tensors: Tensors, facts: Facts) -> Tensors:
    return {"bias": head_bias(tensors, facts)[2]}


def head_gradient(tensors: Tensors, facts: Facts) -> Tensors:
    with float64_throughout():
        head, hidden, bias = head_bias(tensors, facts)
        scalar = (bias * tensors["cotangent"]).sum()
        return gradients(scalar, {**dict(head.named_parameters()), "hidden": hidden})


def loss_of(model: Any, tensors: Tensors, facts: Facts) -> tuple[Tensor, Any]:
    """Their loss and metrics of one training step, from their own reference losses."""
    options: dict[str, Any] = {}
    if facts["model"] == "dspark":
        options["tv_loss_fn"] = resolve_loss_config("tv", "eager")["tv"][0]
    if facts["model"] == "xpress":
        options = {
            "consistency_weight": facts["w_consistency"],
            "consistency_passes": facts["passes"],
            "base_anchor_weight": facts["w_anchor"],
            "ce_from_data": True,
        }
    _none, loss, metrics = model(
        **batch_arguments(tensors),
        loss_config=resolve_loss_config(facts["loss"], "eager"),
        gamma=facts["gamma"],
        **options,
    )
    return loss, metrics


def loss_step(tensors: Tensors, facts: Facts, kind: str) -> Tensors:
    model = build(tensors, facts)
    with float64_throughout() if kind == "gradient" else nullcontext():
        loss, _metrics = loss_of(model, tensors, facts)
        return gradients(loss, trained(model)) if kind == "gradient" else {"loss": loss}


def supervised(tensors: Tensors, facts: Facts) -> Tensors:
    """Which slots of each block their loss counts, bool [n, B]."""
    model = build(tensors, facts)
    found = model._backbone_forward(**batch_arguments(tensors))[3]
    return {"supervised": found.reshape(len(tensors["anchors"]), -1) > 0}


def reduced_acceptance(tensors: Tensors, facts: Facts) -> Tensors:
    """Mean acceptance rate that their DSpark reports with a reduced draft vocabulary."""
    _loss, metrics = loss_of(build(tensors, facts), tensors, facts)
    return {"acceptance": metrics["accept_rate_sum"] / metrics["accept_rate_total"]}


if __name__ == "__main__":
    serve(
        Path(sys.argv[1]),
        "speculators",
        {
            "mask": mask,
            "backbone_forward": backbone_forward,
            "backbone_gradient": backbone_gradient,
            "head_forward": head_forward,
            "head_gradient": head_gradient,
            "loss_forward": partial(loss_step, kind="forward"),
            "loss_gradient": partial(loss_step, kind="gradient"),
            "supervised": supervised,
            "reduced_acceptance": reduced_acceptance,
        },
    )
