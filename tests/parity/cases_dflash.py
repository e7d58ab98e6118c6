"""What z-lab's package is asked: hidden states, their gradients, and whole greedy generations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from fixture import (
    ANCHORS,
    ARCHITECTURE,
    BLOCK,
    HIDDEN,
    MASK_ID,
    NUM_FEATURES,
    World,
    leaves,
    make_drafter,
    make_world,
    noise,
    run_blocks,
)
from generation import Generation, trained_generation
from table import BOTH_WAYS, TOLERANCE, ZLAB, Case, Key
from tensors import gradients, prefixed
from torch import Tensor

from xpress_exp.drafter import DFlashDrafter

CHUNKS = (7, 3, 1, 5)  # features of a prompt, then of the tokens verified in each round
FACTS: dict[str, Any] = {
    "architecture": ARCHITECTURE,
    "draft": {
        "block_size": BLOCK,
        "mask_token_id": MASK_ID,
        "target_layer_ids": list(range(NUM_FEATURES)),
    },
}


def cases() -> Iterator[Case]:
    for kind in BOTH_WAYS:
        yield _blocks("drafter, one block", torch.tensor(ANCHORS[-1:]), kind)
        yield _blocks("drafter, packed blocks", torch.tensor(ANCHORS), kind)
    yield _cached()
    yield _greedy(trained_generation())


def _request(world: World, drafter: DFlashDrafter, **inputs: Tensor) -> dict[str, Tensor]:
    tensors = {"embedding": world.embedding, **inputs}
    return {**prefixed("weight", dict(drafter.state_dict())), **tensors}


def _blocks(subject: str, anchors: Tensor, kind: str) -> Case:
    """The peer takes one block at a time with that block's own context and no mask: the truth for
    our one pass over all blocks of a packed row."""
    dtype = torch.float32 if kind == "forward" else torch.float64
    world = make_world(dtype)
    drafter, batch = make_drafter("fill_in", world), replace(world.batch, anchors=anchors)
    cotangent = noise(7, len(anchors), BLOCK, HIDDEN).to(dtype)
    hidden = run_blocks(drafter, batch)
    ours = {"hidden": hidden}
    if kind == "gradient":
        ours = gradients((hidden * cotangent).sum(), leaves(drafter))
    starts = [int((batch.document_ids < document).sum()) for document in batch.document_ids]
    request = _request(
        world,
        drafter,
        features=world.features,
        input_ids=batch.input_ids,
        anchors=batch.anchors,
        starts=torch.tensor(starts)[batch.anchors],
        cotangent=cotangent,
    )
    return Case(Key(ZLAB, subject, "fill_in", kind), kind, request, ours, TOLERANCE[kind], FACTS)


def _cached() -> Case:
    """Rounds of decoding, each with the features of the tokens verified in the one before."""
    world = make_world(torch.float32)
    drafter = make_drafter("fill_in", world)
    features = world.features[None, : sum(CHUNKS)]
    anchors = world.batch.input_ids[: len(CHUNKS)]
    cache, hidden = drafter.new_cache(), []
    with torch.no_grad():
        for chunk, anchor in zip(features.split(CHUNKS, 1), anchors, strict=True):
            drafter.extend(cache, chunk)
            hidden.append(drafter.draft(cache, anchor[None]))
    request = _request(world, drafter, features=features, anchors=anchors)
    return Case(
        Key(ZLAB, "drafter, with cache", "fill_in", "forward"),
        "cached",
        request,
        {"hidden": torch.cat(hidden)},
        TOLERANCE["forward"],
        {**FACTS, "chunks": list(CHUNKS)},
    )


def _greedy(generation: Generation) -> Case:
    """Tokens of plain and of our speculative decoding, and the tokens of each full round.

    The peer shortens the last block to the tokens still wanted, so what that block drafts differs
    by design; what it commits may not.
    """
    ours: dict[str, Tensor] = {}
    for name, trace in generation.speculative.items():
        ours[f"{name}.tokens"] = torch.tensor(generation.plain[name].tokens)
        ours[f"{name}.tokens, our drafts"] = torch.tensor(trace.tokens)
        ours[f"{name}.rounds"] = torch.tensor(generation.full_rounds(name))
    request = {
        **prefixed("target", generation.target_weights()),
        **prefixed("weight", dict(generation.model.drafter.state_dict())),
        **{f"prompt.{name}": torch.tensor(ids) for name, ids in generation.prompts.items()},
    }
    facts = {
        "target": generation.target_facts(),
        "architecture": generation.drafter_facts(),
        "draft": generation.draft_facts(),
        "limit": generation.limit,
        "stop": sorted(generation.target.stop_token_ids),
    }
    key = Key(ZLAB, "greedy generation", "fill_in", "forward")
    return Case(key, "generate", request, ours, 0.0, facts)
