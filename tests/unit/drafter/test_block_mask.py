"""The training mask against a brute-force oracle over every (query, key) pair."""

from __future__ import annotations

import random

import pytest
import torch

from xpress_exp.drafter import block_mask


def oracle(anchors: list[int], documents: list[int], block_size: int) -> list[list[bool]]:
    """A slot sees earlier tokens of its own document, and every slot of its own block."""
    rows = []
    for block, anchor in enumerate(anchors):
        for _slot in range(block_size):
            row = []
            for place, document in enumerate(documents):
                row.append(document == documents[anchor] and place < anchor)
            for other in range(len(anchors)):
                row.extend([other == block] * block_size)
            rows.append(row)
    return rows


@pytest.mark.parametrize("seed", range(6))
def test_equals_the_oracle(seed: int) -> None:
    draw = random.Random(seed)
    lengths = [draw.randint(1, 9) for _ in range(draw.randint(1, 4))]
    documents = [index for index, length in enumerate(lengths) for _ in range(length)]
    count = draw.randint(1, len(documents))
    anchors = sorted(draw.sample(range(len(documents)), count))
    block_size = draw.randint(2, 5)
    found = block_mask(torch.tensor(anchors), torch.tensor(documents), block_size)
    assert found.dtype == torch.bool
    assert found.tolist() == oracle(anchors, documents, block_size)


def test_by_hand() -> None:
    found = block_mask(torch.tensor([1, 4]), torch.tensor([0, 0, 1, 1, 1]), 2).int().tolist()
    assert found == [
        [1, 0, 0, 0, 0, 1, 1, 0, 0],
        [1, 0, 0, 0, 0, 1, 1, 0, 0],
        [0, 0, 1, 1, 0, 0, 0, 1, 1],
        [0, 0, 1, 1, 0, 0, 0, 1, 1],
    ]
