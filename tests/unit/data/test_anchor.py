from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from xpress_exp.data.anchor import anchor_candidates, block_targets, sample_anchors
from xpress_exp.types import SlotConvention, SlotMap, TrainBatch

FILL_IN, SHIFT = SlotConvention.FILL_IN, SlotConvention.SHIFT
GAMMA = 3.0


def make_batch(seed: int, hidden_size: int = 5) -> TrainBatch:
    """Random documents whose generated spans have holes, and every candidate as an anchor."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 14, (6,), generator=generator)
    documents = torch.repeat_interleave(torch.arange(6), lengths)
    size = len(documents)
    mask = torch.rand(size, generator=generator) < 0.8
    return TrainBatch(
        step=0,
        input_ids=torch.randint(0, 20, (size,), generator=generator),
        document_ids=documents,
        position_ids=torch.zeros(size, dtype=torch.long),
        loss_mask=mask,
        anchors=anchor_candidates(mask, documents).nonzero().squeeze(1),
        last_hidden=torch.randn(size, hidden_size, generator=generator),
    )


def naive_candidates(mask: Tensor, documents: Tensor) -> list[int]:
    return [
        a
        for a in range(len(mask) - 1)
        if mask[a] and mask[a + 1] and documents[a] == documents[a + 1]
    ]


@pytest.mark.parametrize("seed", range(5))
def test_candidates_equal_a_loop(seed: int) -> None:
    batch = make_batch(seed)
    assert batch.anchors.tolist() == naive_candidates(batch.loss_mask, batch.document_ids)


def test_the_first_anchor_is_the_first_generated_token() -> None:
    mask = torch.tensor([False, False, True, True, True])
    assert anchor_candidates(mask, torch.zeros(5, dtype=torch.long)).tolist() == [
        False,
        False,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("count", [1, 3, 100])
def test_anchors_are_sorted_distinct_candidates_within_the_budget(count: int) -> None:
    batch = make_batch(1)
    anchors = sample_anchors(batch.loss_mask, batch.document_ids, count, 0, 0, 0)
    assert anchors.tolist() == sorted(set(anchors.tolist()))
    available = batch.document_ids[batch.anchors].bincount(minlength=6)
    taken = batch.document_ids[anchors].bincount(minlength=6)
    assert taken.tolist() == available.clamp(max=count).tolist()
    assert set(anchors.tolist()) <= set(batch.anchors.tolist())


def test_anchors_are_a_pure_function_of_seed_step_and_rank() -> None:
    mask, documents = torch.ones(400, dtype=torch.bool), torch.zeros(400, dtype=torch.long)

    def draw(seed: int, step: int, rank: int) -> tuple[int, ...]:
        return tuple(sample_anchors(mask, documents, 20, seed, step, rank).tolist())

    base = draw(1, 2, 3)
    torch.manual_seed(99)
    assert draw(1, 2, 3) == base
    assert len({base, draw(2, 2, 3), draw(1, 3, 3), draw(1, 2, 4), draw(2, 1, 3)}) == 5


def test_anchors_are_uniform() -> None:
    """Chi-square of inclusion counts: 10 candidates, 3 drawn, 4000 steps; 9 degrees of freedom.

    Without replacement the statistic shrinks by (1 - 3/10) * 10/9; its 0.9999 quantile is 33.7.
    """
    mask = torch.ones(11, dtype=torch.bool)
    documents = torch.zeros(11, dtype=torch.long)
    counts = torch.zeros(10)
    for step in range(4000):
        counts[sample_anchors(mask, documents, 3, 0, step, 0)] += 1
    expected = 4000 * 3 / 10
    statistic = float(((counts - expected) ** 2).sum() / expected) / (0.7 * 10 / 9)
    assert counts.sum() == 12000
    assert statistic < 33.7


def naive_targets(
    batch: TrainBatch, slots: SlotMap, anchor_prev: str, vocab_index: list[int] | None
) -> tuple[list[list[int]], list[list[float]], list[list[int]], list[list[int]]]:
    """labels, weights, previous tokens where they matter (else -1), label positions, by loops."""
    ids, documents = batch.input_ids.tolist(), batch.document_ids.tolist()
    generated = batch.loss_mask.tolist()
    all_labels, all_weights, all_previous, all_positions = [], [], [], []
    for anchor in batch.anchors.tolist():
        labels = [0] * slots.block_size
        weights = [0.0] * slots.block_size
        previous = [-1] * slots.block_size
        positions = [-1] * slots.block_size
        if slots.convention is FILL_IN:
            same = anchor > 0 and documents[anchor - 1] == documents[anchor]
            reads_before = same and anchor_prev == "predecessor"
            previous[0] = ids[anchor - 1] if reads_before else ids[anchor]
        for k in range(1, slots.num_draft_tokens + 1):
            position = anchor + k
            if position >= len(ids) or documents[position] != documents[anchor]:
                break
            if not generated[position]:
                break
            label = ids[position] if vocab_index is None else vocab_index[ids[position]]
            if label < 0:
                break
            slot = k if slots.convention is FILL_IN else k - 1
            labels[slot], weights[slot] = label, math.exp(-(k - 1) / GAMMA)
            previous[slot], positions[slot] = ids[position - 1], position
        all_labels.append(labels)
        all_weights.append(weights)
        all_previous.append(previous)
        all_positions.append(positions)
    return all_labels, all_weights, all_previous, all_positions


SLOT_MAPS = [SlotMap(FILL_IN, 5), SlotMap(SHIFT, 4), SlotMap(SHIFT, 5, num_unused_slots=1)]


@pytest.mark.parametrize("slots", SLOT_MAPS, ids=str)
@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("anchor_prev", ["anchor", "predecessor"])
@pytest.mark.parametrize("seed", range(4))
def test_block_targets_equal_a_double_loop(
    slots: SlotMap, reduced: bool, anchor_prev: str, seed: int
) -> None:
    batch = make_batch(seed)
    index = None
    if reduced:  # every fourth token is outside the draft vocabulary
        inside = torch.arange(20) % 4 != 3
        index = torch.where(inside, inside.cumsum(0) - 1, -1)
    targets = block_targets(batch, slots, GAMMA, anchor_prev, index)
    labels, weights, previous, positions = naive_targets(
        batch, slots, anchor_prev, None if index is None else index.tolist()
    )
    assert targets.labels.tolist() == labels
    torch.testing.assert_close(targets.weights, torch.tensor(weights))
    known = torch.tensor(previous)
    assert torch.equal(targets.previous_tokens[known >= 0], known[known >= 0])
    assert targets.previous_tokens.min() >= 0
    places = torch.tensor(positions)
    assert batch.last_hidden is not None
    expected = batch.last_hidden[places[places >= 0] - 1]
    assert torch.equal(targets.target_hidden[places >= 0], expected)
    assert torch.equal(targets.anchor, batch.input_ids[batch.anchors])


@pytest.mark.parametrize("slots", SLOT_MAPS[:2], ids=str)
def test_a_pointwise_mask_counts_labels_after_a_gap_in_the_same_document(slots: SlotMap) -> None:
    """Documents 0-6 and 7-10; 3 was not generated. The block at 2 has labels 3 4 5 6, that at 5
    has 6 | 7 8 9."""
    mask = torch.ones(11, dtype=torch.bool)
    mask[[0, 3, 7]] = False
    batch = TrainBatch(
        step=0,
        input_ids=torch.arange(11),
        document_ids=torch.tensor([0] * 7 + [1] * 4),
        position_ids=torch.zeros(11, dtype=torch.long),
        loss_mask=mask,
        anchors=torch.tensor([2, 5]),
        last_hidden=torch.zeros(11, 5),
    )
    pointwise = block_targets(batch, slots, GAMMA, label_mask="pointwise").weights
    prefix = block_targets(batch, slots, GAMMA).weights
    assert (pointwise[:, slots.draft_slots] > 0).tolist() == [
        [False, True, True, True],
        [True, False, False, False],
    ]
    assert (prefix[:, slots.draft_slots] > 0).tolist() == [[False] * 4, [True] + [False] * 3]


@pytest.mark.parametrize("slots", SLOT_MAPS, ids=str)
def test_nothing_of_another_document_is_read(slots: SlotMap) -> None:
    batch = make_batch(2)
    before = block_targets(batch, slots, GAMMA, "predecessor")
    chosen = int(batch.document_ids[batch.anchors[len(batch.anchors) // 2]])
    own = batch.document_ids == chosen
    other_tokens = torch.where(own, batch.input_ids, batch.input_ids + 100)
    changed = dataclasses.replace(batch, input_ids=other_tokens)
    after = block_targets(changed, slots, GAMMA, "predecessor")
    mine = batch.document_ids[batch.anchors] == chosen
    assert mine.any()
    for name in ("labels", "previous_tokens", "weights", "anchor", "anchor_previous"):
        assert torch.equal(getattr(before, name)[mine], getattr(after, name)[mine]), name


def test_online_batches_need_the_target_first() -> None:
    batch = dataclasses.replace(make_batch(0), last_hidden=None)
    with pytest.raises(ValueError, match=r"last_hidden is None"):
        block_targets(batch, SLOT_MAPS[0], GAMMA)
