"""What a block of the drafter may see: nothing that decoding would not know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from xpress_exp.drafter import DFlashDrafter
from xpress_exp.target import TinyTarget
from xpress_exp.types import TrainBatch

CLOSE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}


def changed_rows(
    trained_form: Callable[..., Tensor],
    drafter: DFlashDrafter,
    batch: TrainBatch,
    **changes: Tensor,
) -> list[int]:
    """Anchors whose block differs in any bit after the batch has changed."""
    before, after = trained_form(drafter, batch), trained_form(drafter, replace(batch, **changes))
    same = (before == after).flatten(1).all(1).tolist()
    return [anchor for anchor, equal in zip(batch.anchors.tolist(), same, strict=True) if not equal]


def test_a_block_sees_only_earlier_features_of_its_document(
    trained_form: Callable[..., Tensor], drafter: DFlashDrafter, batch: TrainBatch
) -> None:
    assert batch.features is not None
    for place in range(len(batch.input_ids)):
        features = batch.features.clone()
        features[place] += 1.5
        same = batch.document_ids == batch.document_ids[place]
        expected = [anchor for anchor in batch.anchors.tolist() if same[anchor] and place < anchor]
        assert changed_rows(trained_form, drafter, batch, features=features) == expected, place


def test_a_block_sees_only_its_own_anchor_token(
    trained_form: Callable[..., Tensor], drafter: DFlashDrafter, batch: TrainBatch
) -> None:
    for place in range(len(batch.input_ids)):
        tokens = batch.input_ids.clone()
        tokens[place] = 50
        expected = [place] if place in batch.anchors else []
        assert changed_rows(trained_form, drafter, batch, input_ids=tokens) == expected, place


def test_appended_documents_change_nothing(
    trained_form: Callable[..., Tensor],
    make_target: Callable[..., TinyTarget],
    pack: Callable[..., TrainBatch],
    drafter: DFlashDrafter,
    batch: TrainBatch,
) -> None:
    documents = [(batch.input_ids[batch.document_ids == index].tolist(), []) for index in range(3)]
    longer = pack(make_target(), [*documents, ([7, 7], [7, 7, 7])], [*batch.anchors.tolist(), 19])
    torch.testing.assert_close(
        trained_form(drafter, longer)[:-1], trained_form(drafter, batch), **CLOSE
    )


def test_slots_see_each_other_in_both_directions(drafter: DFlashDrafter, batch: TrainBatch) -> None:
    with torch.no_grad():
        block = drafter._block_inputs(torch.tensor([9])).clone()
        cache = drafter.new_cache()
        drafter.extend(cache, batch.features[None, :5])  # type: ignore[index]
        room = cache.reserve(drafter.slots.block_size)
        joins = [partial(room.write, layer) for layer in range(len(drafter.layers))]
        positions = torch.arange(5, 5 + drafter.slots.block_size)[None]
        before = drafter._run(block, positions, joins, None)
        for slot in range(drafter.slots.block_size):
            perturbed = block.clone()
            perturbed[:, slot] += 1.0
            after = drafter._run(perturbed, positions, joins, None)
            assert bool((before != after).any(-1).all()), slot
