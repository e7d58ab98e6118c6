"""Where a peer is wrong: cases small enough to be worked out by hand.

`truth` and `mistake` are written down here, not computed: ours must give the first, the peer gives
the second. A peer that is corrected makes its row fail, so that the documentation follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from cases_speculators import GAMMA, batch_request, model_facts, model_weights
from fixture import ARCHITECTURE, make_drafter, make_head, make_world, run_blocks, slot_map
from table import SPECULATORS, Case, Key
from tensors import prefixed
from torch import Tensor

from xpress_exp.data.anchor import block_targets
from xpress_exp.drafter import DFlashDrafter
from xpress_exp.head import NoHead
from xpress_exp.objective import CoTrainObjective
from xpress_exp.types import ModelDims, TrainBatch


def cases() -> Iterator[Case]:
    yield across_documents()
    yield after_the_response()
    yield outside_the_vocabulary()


def across_documents() -> Case:
    """Row: document A = positions 0-7, generated from 2; document B = 8-17, generated from 9.

    A block at anchor 6 has labels 7 | 8 9 10, of which 8-10 are another text. Position 7 alone may
    count. The peer reads the row's mask pointwise: 8 is a prompt token, but 9 and 10 count.
    """
    return _supervised(
        "labels across documents",
        "fill_in",
        documents=((2, 6), (1, 9)),
        anchor=6,
        truth=[0, 1, 0, 0, 0],
        mistake=[0, 1, 0, 1, 1],
    )


def after_the_response() -> Case:
    """Row: document A = positions 0-7, generated from 2; document B = 8-18, generated from 11.

    Slot k of a block at anchor 4 has label 5+k: labels 5 6 7 | 8 9, the last two of another
    document and never generated. The peer reads the mask at 4+k, so label 8 counts.
    """
    return _supervised(
        "labels after the response",
        "shift",
        documents=((2, 6), (3, 8)),
        anchor=4,
        truth=[1, 1, 1, 0, 0],
        mistake=[1, 1, 1, 1, 0],
    )


def _supervised(
    subject: str,
    convention: str,
    documents: tuple[tuple[int, int], ...],
    anchor: int,
    truth: list[int],
    mistake: list[int],
) -> Case:
    world = make_world(torch.float32, documents=documents, anchors=(anchor,))
    drafter, head = make_drafter(convention, world), make_head("none", convention, world)
    targets = block_targets(world.batch, slot_map(convention), GAMMA)
    return Case(
        Key(SPECULATORS, subject, convention, "by_hand"),
        "supervised",
        {**model_weights(world, drafter, head, "none"), **batch_request(world)},
        {"supervised": targets.weights > 0},
        0.0,
        model_facts("none", convention),
        truth={"supervised": torch.tensor([truth])},
        mistake={"supervised": torch.tensor([mistake])},
    )


def outside_the_vocabulary() -> Case:
    """Target p = (0.3, 0.3, 0.4), drafts from tokens 0 and 1 with q = (0.5, 0.5).

    Acceptance is sum min(p, q) = 0.3 + 0.3 = 0.6. The peer applies the softmax after it has
    dropped token 2, gets p = (0.5, 0.5), and reports 1.0.
    """
    log_law = torch.tensor([0.3, 0.3, 0.4]).log()
    world = make_world(torch.float32, documents=((2, 10),), anchors=(4,))
    ids = world.batch.input_ids % 2
    raw = torch.ones(len(ids), 3)
    features = torch.ones(len(ids), 6)
    # A final norm of weight log p on a constant state, and an identity as LM head, give log p.
    last = torch.nn.functional.rms_norm(raw, (3,), log_law, 1e-6)
    batch = replace(world.batch, input_ids=ids, features=features, last_hidden=last)
    drafter = _silent_drafter()
    request = {
        **prefixed("weight", {**drafter.state_dict(), **_reduced_weights(log_law)}),
        **batch_request(world),
        "input_ids": ids,
        "features": features,
        "raw_hidden": raw,
    }
    return Case(
        Key(SPECULATORS, "acceptance outside a reduced vocabulary", "fill_in", "by_hand"),
        "reduced_acceptance",
        request,
        {"acceptance": _our_acceptance(batch, drafter)},
        1e-5,
        _reduced_facts(),
        truth={"acceptance": torch.tensor(0.6)},
        mistake={"acceptance": torch.tensor(1.0)},
    )


def _reduced_dims() -> ModelDims:
    return ModelDims(hidden_size=3, vocab_size=3, draft_vocab_size=2, slots=slot_map("fill_in"))


def _silent_drafter() -> DFlashDrafter:
    """Its last norm has weight 0: hidden states and base logits are 0, q is uniform."""
    drafter = DFlashDrafter(
        _reduced_dims(),
        feature_size=6,
        token_embedding=torch.eye(3),
        rope_inv_freq=torch.ones(ARCHITECTURE["head_dim"] // 2),
        rope_scale=1.0,
        num_layers=ARCHITECTURE["num_hidden_layers"],
        intermediate_size=ARCHITECTURE["intermediate_size"],
        num_heads=ARCHITECTURE["num_attention_heads"],
        num_kv_heads=ARCHITECTURE["num_key_value_heads"],
        head_dim=ARCHITECTURE["head_dim"],
        mask_token_id=2,
    )
    torch.nn.init.zeros_(drafter.norm.weight)
    return drafter


def _reduced_weights(log_law: Tensor) -> dict[str, Tensor]:
    """The peer's frozen matrices; d2t holds offsets of draft ids to target ids."""
    return {
        "embed_tokens.weight": torch.eye(3),
        "lm_head.weight": torch.eye(3)[:2],
        "verifier_lm_head.weight": torch.eye(3)[:2],
        "verifier_norm.weight": log_law,
        "t2d": torch.tensor([True, True, False]),
        "d2t": torch.tensor([0, 0]),
    }


def _reduced_facts() -> dict[str, Any]:
    facts = model_facts("vanilla", "fill_in")
    small = {"hidden_size": 3, "vocab_size": 3}
    options = {"draft_vocab_size": 2, "mask_token_id": 2, "markov_rank": 0}
    return {
        **facts,
        "architecture": {**facts["architecture"], **small},
        "options": {**facts["options"], **options},
        "loss": "tv",
        "gamma": GAMMA,
    }


def _our_acceptance(batch: TrainBatch, drafter: DFlashDrafter) -> Tensor:
    """Mean expected acceptance that our objective logs."""
    slots, vocab_ids = drafter.slots, torch.tensor([0, 1])
    index = torch.tensor([0, 1, -1])
    targets = block_targets(batch, slots, GAMMA, vocab_index=index)
    objective = CoTrainObjective(
        ce_weight=0.0,
        l1_weight=1.0,
        decay_gamma=GAMMA,
        w_anchor={"start": 0.0, "end": 0.0, "schedule": "constant"},
        w_consistency=0.0,
        consistency_passes=1,
        chunk_blocks=1,
    )
    head = NoHead(_reduced_dims(), torch.eye(3))
    losses = objective(
        run_blocks(drafter, batch),
        head,
        torch.eye(3),
        vocab_ids,
        targets,
        slots,
        0.5,
        targets.weights.sum(),
    )
    return losses.sums["base_accept"].sum() / losses.counts["slot_count"].sum()
