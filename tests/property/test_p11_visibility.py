"""P11a: what a training block sees is what decoding knows, and nothing else changes a bit of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from xpress_exp.builders import DraftModel
from xpress_exp.drafter import block_mask
from xpress_exp.target import TinyTarget
from xpress_exp.types import TrainBatch

DOCUMENTS = [([5, 9, 4], [13, 6, 6, 8, 20]), ([31, 7], [30, 29, 12, 40]), ([8], [9, 10, 11])]
ANCHORS = [0, 3, 5, 8, 10, 13, 14, 17]


def hidden_states(model: DraftModel, batch: TrainBatch) -> dict[int, Tensor]:
    """Hidden states [P, H] of every block by the index of its anchor."""
    with torch.no_grad():
        found = model.drafter(
            batch.features,
            batch.position_ids,
            batch.input_ids[batch.anchors],
            batch.position_ids[batch.anchors],
            block_mask(batch.anchors, batch.document_ids, model.slots.block_size),
        )
    return dict(zip(batch.anchors.tolist(), found, strict=True))


@pytest.mark.property("P11a")
@pytest.mark.parametrize("convention", ["fill_in", "shift"])
def test_p11a_a_block_sees_earlier_features_and_its_anchor_only(
    make_target: Callable[..., TinyTarget],
    make_model: Callable[..., DraftModel],
    pack: Callable[..., TrainBatch],
    convention: str,
) -> None:
    """Perturbed one by one: the feature and the token at every place (those at and after the
    anchor, labels among them, and those of other documents), and every other block's presence."""
    target = make_target()
    model = make_model(target, convention=convention, randomize=0.3)
    batch = pack(target, DOCUMENTS, ANCHORS)
    before = hidden_states(model, batch)

    def changed(other: TrainBatch) -> list[int]:
        after = hidden_states(model, other)
        return [anchor for anchor in after if not torch.equal(after[anchor], before[anchor])]

    for place in range(len(batch.input_ids)):
        features, tokens = batch.features.clone(), batch.input_ids.clone()  # type: ignore[union-attr]
        features[place] += 1.5
        tokens[place] = 50
        same = batch.document_ids == batch.document_ids[place]
        later = [anchor for anchor in ANCHORS if same[anchor] and place < anchor]
        assert changed(replace(batch, features=features)) == later, place
        own = [anchor for anchor in ANCHORS if anchor == place]
        assert changed(replace(batch, input_ids=tokens)) == own, place
    for left_out in range(len(ANCHORS)):
        # The same number of blocks, so that every sum is taken over rows of equal length.
        anchors = batch.anchors.clone()
        anchors[left_out] = 16
        after = hidden_states(model, replace(batch, anchors=anchors))
        for anchor in set(after) & set(before):
            assert torch.equal(after[anchor], before[anchor]), (left_out, anchor)
