"""SlotMap by hand for both conventions, and the small types that carry derived numbers."""

from __future__ import annotations

import math

import pytest
import torch

from xpress_exp.types import (
    SampleTrace,
    SlotConvention,
    SlotMap,
    TrainBatch,
    nan_free_mean,
)

FILL_IN = SlotMap(SlotConvention.FILL_IN, 5)
SHIFT = SlotMap(SlotConvention.SHIFT, 5)
DOMINO = SlotMap(SlotConvention.SHIFT, 5, 1)
Q = math.exp(-1 / 4)


@pytest.mark.parametrize(
    ("slots", "first", "count", "offsets"),
    [
        (FILL_IN, 1, 4, [0, 1, 2, 3, 4]),
        (SHIFT, 0, 5, [1, 2, 3, 4, 5]),
        (DOMINO, 0, 4, [1, 2, 3, 4, 5]),
        (SlotMap(SlotConvention.FILL_IN, 2), 1, 1, [0, 1]),
        (SlotMap(SlotConvention.SHIFT, 1), 0, 1, [1]),
    ],
)
def test_slots_and_labels(slots: SlotMap, first: int, count: int, offsets: list[int]) -> None:
    assert slots.first_slot == first
    assert slots.num_draft_tokens == count
    assert slots.label_offsets().tolist() == offsets
    drafted = offsets[slots.draft_slots]
    assert drafted == list(range(1, count + 1))  # x_1..x_N, none skipped


def test_published_sizes() -> None:
    """dFlash and xPress: B 16 drafts 15; DSpark: B 7 drafts 7; Domino: B 16 drafts 15."""
    assert SlotMap(SlotConvention.FILL_IN, 16).num_draft_tokens == 15
    assert SlotMap(SlotConvention.SHIFT, 7).num_draft_tokens == 7
    assert SlotMap(SlotConvention.SHIFT, 16, 1).num_draft_tokens == 15


@pytest.mark.parametrize(
    ("slots", "expected"),
    [(FILL_IN, [0, 1, Q, Q**2, Q**3]), (SHIFT, [1, Q, Q**2, Q**3, Q**4])],
)
def test_decay_weights(slots: SlotMap, expected: list[float]) -> None:
    weights = slots.decay_weights(4.0)
    assert weights.dtype == torch.float32
    assert weights.tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("slots", "drafts", "expected"),
    [
        (FILL_IN, [21, 22, 23, 24], [8, 9, 21, 22, 23]),
        (SHIFT, [21, 22, 23, 24, 25], [9, 21, 22, 23, 24]),
        (DOMINO, [21, 22, 23, 24], [9, 21, 22, 23, 24]),
        # Unknown drafts repeat the last known token.
        (FILL_IN, [21], [8, 9, 21, 21, 21]),
        (FILL_IN, [], [8, 9, 9, 9, 9]),
        (SHIFT, [21, 22], [9, 21, 22, 22, 22]),
        (SHIFT, [], [9, 9, 9, 9, 9]),
    ],
)
def test_previous_tokens(slots: SlotMap, drafts: list[int], expected: list[int]) -> None:
    tokens = torch.tensor([drafts, [token + 40 for token in drafts]], dtype=torch.int64)
    found = slots.previous_tokens(torch.tensor([9, 49]), tokens, torch.tensor([8, 48]))
    assert found.tolist() == [expected, [token + 40 for token in expected]]


def test_a_slot_reads_the_token_before_the_one_it_predicts() -> None:
    """Numbering tokens by their position, slot j of either convention reads label - 1."""
    for slots in (FILL_IN, SHIFT, DOMINO):
        drafts = torch.arange(101, 101 + slots.num_draft_tokens)[None]
        read = slots.previous_tokens(torch.tensor([100]), drafts, torch.tensor([99]))
        assert torch.equal(read[0], 100 + slots.label_offsets() - 1)


@pytest.mark.parametrize(
    ("convention", "block_size", "unused"), [("fill_in", 1, 0), ("shift", 1, 1), ("shift", 2, 3)]
)
def test_a_block_without_drafts_is_refused(convention: str, block_size: int, unused: int) -> None:
    with pytest.raises(ValueError, match=rf"drafter\.block_size={block_size}"):
        SlotMap(SlotConvention(convention), block_size, unused)


def test_batch_moves_every_tensor() -> None:
    names = ("input_ids", "document_ids", "position_ids", "loss_mask", "anchors")
    batch = TrainBatch(3, *(torch.zeros(2, dtype=torch.int64) for _ in names))
    moved = batch.to(torch.device("meta"))
    assert moved.step == 3 and moved.features is None and moved.last_hidden is None
    assert all(getattr(moved, name).device.type == "meta" for name in names)


def test_num_decoded_leaves_the_prefill_token_out() -> None:
    trace = SampleTrace("p", "math", (4, 5, 6), (), 7, 1.0, 2.0, (1.0, 1.0), "length")
    assert trace.num_decoded == 2


def test_empty_mean_is_unknown() -> None:
    assert nan_free_mean(3.0, 2) == 1.5
    assert math.isnan(nan_free_mean(0.0, 0))
