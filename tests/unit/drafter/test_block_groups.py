"""Attention group by group against attention under the whole mask."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from xpress_exp.drafter import block_groups, block_mask
from xpress_exp.drafter.block_mask import attend

CLOSE: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}


def draw_anchors(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(anchors, document ids) of documents of one to nine tokens, some without an anchor."""
    draw = random.Random(seed)
    documents = [index for index in range(draw.randint(1, 5)) for _ in range(draw.randint(1, 9))]
    anchors = sorted(draw.sample(range(len(documents)), draw.randint(1, len(documents))))
    return torch.tensor(anchors), torch.tensor(documents)


@pytest.mark.parametrize("group_blocks", [1, 2, 100])
@pytest.mark.parametrize("seed", range(5))
def test_values_and_gradients_equal_the_whole_mask(seed: int, group_blocks: int) -> None:
    anchors, documents = draw_anchors(seed)
    slots, block_size = 3 * len(anchors), 3
    torch.manual_seed(seed)
    query = torch.randn(1, 4, slots, 8, dtype=torch.float64, requires_grad=True)
    keys, values = (
        torch.randn(1, 2, len(documents) + slots, 8, dtype=torch.float64, requires_grad=True)
        for _ in range(2)
    )
    cotangent = torch.randn_like(query)
    whole = block_mask(anchors, documents, block_size)
    groups = block_groups(anchors, documents, block_size, group_blocks)
    results = []
    for mask in (whole, groups):
        mixed = attend(query, keys, values, mask)
        results.append(
            [mixed, *torch.autograd.grad((mixed * cotangent).sum(), [query, keys, values])]
        )
    for found, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(found, expected, **CLOSE)


def test_no_group_holds_a_key_that_nobody_sees() -> None:
    """Two documents of five tokens: the second one's group starts at its first token and stops
    before its last anchor."""
    documents = torch.tensor([0] * 5 + [1] * 5)
    first, second = block_groups(torch.tensor([0, 6, 8]), documents, block_size=2)
    assert (first.context, second.context) == (slice(0, 0), slice(5, 8))
    assert first.mask.int().tolist() == [[1, 1], [1, 1]]
    assert second.mask.int().tolist() == [
        [1, 0, 0, 1, 1, 0, 0],
        [1, 0, 0, 1, 1, 0, 0],
        [1, 1, 1, 0, 0, 1, 1],
        [1, 1, 1, 0, 0, 1, 1],
    ]


def test_the_work_grows_with_the_anchors_and_not_with_their_square() -> None:
    def area(count: int) -> int:
        groups = block_groups(torch.arange(count), torch.zeros(2 * count), block_size=4)
        own = [group.num_slots**2 for group in groups]
        return sum(own)

    assert area(128) == 2 * area(64)


def test_unsorted_anchors_are_refused() -> None:
    with pytest.raises(ValueError, match="ascend"):
        block_groups(torch.tensor([3, 1]), torch.zeros(5, dtype=torch.int64), 2)
