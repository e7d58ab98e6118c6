"""Packed documents with anchors at every kind of place, and a drafter of random weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from xpress_exp.builders import DraftModel
from xpress_exp.drafter import DFlashDrafter, block_mask
from xpress_exp.target import TinyTarget
from xpress_exp.types import TrainBatch

DOCUMENTS = [([5, 9, 4], [13, 6, 6, 8, 20]), ([31, 7], [30, 29, 12, 40]), ([8], [9, 10, 11])]
ANCHORS = [0, 3, 5, 7, 8, 10, 13, 14, 17]  # every document, first and last tokens included


@pytest.fixture
def batch(make_target: Callable[..., TinyTarget], pack: Callable[..., TrainBatch]) -> TrainBatch:
    return pack(make_target(), DOCUMENTS, ANCHORS)


@pytest.fixture
def drafter(
    make_target: Callable[..., TinyTarget], make_model: Callable[..., DraftModel]
) -> DFlashDrafter:
    return make_model(make_target(), randomize=0.3).drafter


@pytest.fixture
def trained_form() -> Callable[[DFlashDrafter, TrainBatch], Tensor]:
    """Hidden states [n, P, H] of all blocks by the training pass."""

    def run(drafter: DFlashDrafter, batch: TrainBatch) -> Tensor:
        assert batch.features is not None
        with torch.no_grad():
            return drafter(
                batch.features,
                batch.position_ids,
                batch.input_ids[batch.anchors],
                batch.position_ids[batch.anchors],
                block_mask(batch.anchors, batch.document_ids, drafter.slots.block_size),
            )

    return run
