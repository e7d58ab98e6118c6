"""What the speculators package is asked: masks, backbones, heads, and whole training losses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from fixture import (
    ARCHITECTURE,
    BLOCK,
    HIDDEN,
    MASK_ID,
    NUM_FEATURES,
    RANK,
    VOCAB,
    World,
    leaves,
    make_drafter,
    make_head,
    make_world,
    noise,
    run_blocks,
    slot_map,
)
from table import BOTH_WAYS, CONVENTIONS, SPECULATORS, TOLERANCE, Case, Key
from tensors import float64_throughout, gradients, prefixed
from torch import Tensor

from xpress_exp.data.anchor import block_targets
from xpress_exp.drafter import block_mask
from xpress_exp.head import CorrectionHead
from xpress_exp.objective import CoTrainObjective
from xpress_exp.types import BlockTargets, SlotMap

GAMMA, PASSES, W_ANCHOR, W_CONSISTENCY = 4.0, 3, 0.6, 0.3
HEADS = ("vanilla", "gated", "rnn", "xpress")
MODEL_OF = {"none": "dflash", "xpress": "xpress"}  # any other head: dspark
# Our names of a head's tensors and theirs; every other name is the same.
MARKOV_NAMES = {"token_table": "markov_w1.weight", "readout": "markov_w2.weight"}
XPRESS_NAMES = {
    "token_table": "token_embed.weight",
    "down_hidden.weight": "down_h.weight",
    "down_global.weight": "down_g.weight",
    "mix": "mix_l",
    "mlp.gate_proj.weight": "mlp_gate.weight",
    "mlp.up_proj.weight": "mlp_up.weight",
    "mlp.down_proj.weight": "mlp_down.weight",
    "readout": "readout.weight",
}


def cases() -> Iterator[Case]:
    yield _mask()
    for model, kind in product(("dflash", "dspark", "xpress"), BOTH_WAYS):
        yield _backbone(model, kind)
    for head, convention, kind in product(HEADS, CONVENTIONS, BOTH_WAYS):
        yield _head(head, convention, kind)
    for head, loss, convention, kind in product(
        ("none", *HEADS), ("ce", "tv"), CONVENTIONS, BOTH_WAYS
    ):
        yield _loss(head, loss, convention, kind)


def dtype_of(kind: str) -> torch.dtype:
    return torch.float32 if kind == "forward" else torch.float64


def theirs(head: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The head's tensors under their names."""
    names = XPRESS_NAMES if head == "xpress" else MARKOV_NAMES
    return {names.get(name, name): tensor for name, tensor in tensors.items()}


def model_facts(head: str, convention: str) -> dict[str, Any]:
    """Their model class and its configuration."""
    model = MODEL_OF.get(head, "dspark")
    options: dict[str, Any] = {}
    if model == "xpress":
        options = {"xpress_rank": RANK}
    if model == "dspark":
        options = {
            "markov_rank": RANK,
            "markov_head_type": head,
            "enable_confidence_head": False,
            "confidence_head_with_markov": False,
        }
    options |= {
        "block_size": BLOCK,
        "mask_token_id": MASK_ID,
        "draft_vocab_size": VOCAB,
        "aux_hidden_state_layer_ids": list(range(NUM_FEATURES)),
        "sample_from_anchor": convention == "shift",
    }
    return {"model": model, "architecture": ARCHITECTURE, "options": options}


def batch_request(world: World) -> dict[str, Tensor]:
    batch = world.batch
    return {
        "input_ids": batch.input_ids,
        "document_ids": batch.document_ids,
        "position_ids": batch.position_ids,
        "loss_mask": batch.loss_mask.long(),
        "anchors": batch.anchors,
        "features": world.features,
        "raw_hidden": world.raw_hidden,
    }


def model_weights(world: World, drafter: torch.nn.Module, head: CorrectionHead, name: str) -> Any:
    """Weights of their whole model, the target's frozen matrices included."""
    prefix = "refiner_head" if name == "xpress" else "markov_head"
    weights = {
        **drafter.state_dict(),
        **prefixed(prefix, theirs(name, head.state_dict())),
        "embed_tokens.weight": world.embedding,
        "lm_head.weight": world.lm_head,
        "verifier_lm_head.weight": world.lm_head,
        "verifier_norm.weight": world.final_norm,
    }
    return prefixed("weight", weights)


def _mask() -> Case:
    batch = make_world(torch.float32).batch
    return Case(
        Key(SPECULATORS, "training mask", "any", "forward"),
        "mask",
        {"document_ids": batch.document_ids, "anchors": batch.anchors},
        {"mask": block_mask(batch.anchors, batch.document_ids, BLOCK)},
        0.0,
        {"block_size": BLOCK},
    )


def _backbone(model: str, kind: str) -> Case:
    head_name = {"dflash": "none", "dspark": "vanilla", "xpress": "xpress"}[model]
    world = make_world(dtype_of(kind))
    drafter, head = make_drafter("fill_in", world), make_head(head_name, "fill_in", world)
    hidden = run_blocks(drafter, world.batch)
    cotangent = noise(8, *hidden.shape).to(hidden)
    ours = {
        "hidden": hidden,
        "base_logits": hidden @ world.lm_head.T,
        "target_logits": _target_logits(world, slot_map("fill_in")),
    }
    if kind == "gradient":
        ours = gradients((hidden * cotangent).sum(), leaves(drafter))
    request = {
        **model_weights(world, drafter, head, head_name),
        **batch_request(world),
        "cotangent": cotangent,
    }
    key = Key(SPECULATORS, f"{model} backbone", "fill_in", kind)
    facts = model_facts(head_name, "fill_in")
    return Case(key, f"backbone_{kind}", request, ours, TOLERANCE[kind], facts)


def _target_logits(world: World, slots: SlotMap) -> Tensor:
    targets = block_targets(world.batch, slots, GAMMA)
    return targets.target_hidden @ world.lm_head.T


def _head(name: str, convention: str, kind: str) -> Case:
    """The correction z @ readout.T of every slot, the anchor's own included."""
    world = make_world(dtype_of(kind))
    head = make_head(name, convention, world).train()
    blocks = len(world.batch.anchors)
    hidden = noise(9, blocks, BLOCK, HIDDEN).to(world.lm_head).requires_grad_()
    draw = torch.Generator().manual_seed(10)
    previous = torch.randint(VOCAB, (blocks, BLOCK), generator=draw)
    bias = head.code(hidden, previous) @ head.readout.T
    cotangent = noise(11, *bias.shape).to(bias)
    ours = {"bias": bias}
    if kind == "gradient":
        found = gradients((bias * cotangent).sum(), {**leaves(head), "hidden": hidden})
        ours = theirs(name, found)
    request = {
        **prefixed("weight", theirs(name, dict(head.state_dict()))),
        "hidden": hidden,
        "previous": previous,
        "cotangent": cotangent,
    }
    facts = {"head": name, "rank": RANK}
    key = Key(SPECULATORS, f"{name} head", convention, kind)
    return Case(key, f"head_{kind}", request, ours, TOLERANCE[kind], facts)


def _loss(name: str, loss: str, convention: str, kind: str) -> Case:
    """One training step of drafter and head.

    Theirs reads the mask at the slot, ours at its label: a gap in the mask can be compared only
    where both are the same position, in `fill_in`.
    """
    world = make_world(dtype_of(kind), mask_gaps=(13, 39) if convention == "fill_in" else ())
    drafter, head = make_drafter(convention, world), make_head(name, convention, world).train()
    # Position weights are float32 on both sides, which would be all that a gradient row sees.
    with float64_throughout() if kind == "gradient" else nullcontext():
        total = our_loss(world, drafter, head, loss, name)
    ours = {"loss": total}
    if kind == "gradient":
        prefix = "refiner_head" if name == "xpress" else "markov_head"
        found = gradients(total, {**leaves(drafter), **prefixed("head", leaves(head))})
        heads = {k.removeprefix("head."): v for k, v in found.items() if k.startswith("head.")}
        bodies = {k: v for k, v in found.items() if not k.startswith("head.")}
        ours = {**bodies, **prefixed(prefix, theirs(name, heads))}
    request = {**model_weights(world, drafter, head, name), **batch_request(world)}
    label = "dflash" if name == "none" else name
    key = Key(SPECULATORS, f"{label} {loss.upper()} loss", convention, kind)
    facts = {
        **model_facts(name, convention),
        "loss": loss,
        "gamma": GAMMA,
        "passes": PASSES,
        "w_anchor": W_ANCHOR,
        "w_consistency": W_CONSISTENCY,
    }
    return Case(key, f"loss_{kind}", request, ours, TOLERANCE[kind], facts)


def our_loss(world: World, drafter: Any, head: CorrectionHead, loss: str, name: str) -> Tensor:
    """Our objective with their labels, label mask, denominator and passes."""
    slots = drafter.slots
    targets = block_targets(world.batch, slots, GAMMA, head.anchor_prev, label_mask="pointwise")
    if name != "xpress":  # labels: the target's argmax instead of the text
        targets = _argmax_labels(targets, world)
    # Their two reductions add another constant to the number of labels.
    constant = 1e-8 if (name, loss) == ("xpress", "ce") else 1e-5
    denominator = (targets.weights > 0).sum().to(world.lm_head) + constant
    co_trained = name == "xpress"
    objective = CoTrainObjective(
        ce_weight=float(loss == "ce"),
        l1_weight=0.5 * (loss == "tv"),  # TV is half the L1 distance
        decay_gamma=GAMMA,
        w_anchor={"start": W_ANCHOR * co_trained, "end": 0.0, "schedule": "constant"},
        w_consistency=W_CONSISTENCY * co_trained,
        consistency_passes=PASSES,
        chunk_blocks=3,
    )
    hidden = run_blocks(drafter, world.batch)
    losses = objective(hidden, head, world.lm_head, None, targets, slots, 0.5, denominator)
    return losses.total


def _argmax_labels(targets: BlockTargets, world: World) -> BlockTargets:
    return replace(targets, labels=(targets.target_hidden @ world.lm_head.T).argmax(-1))
