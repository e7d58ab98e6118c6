"""Noise keyed by position: equal for equal (key, position), independent otherwise."""

from __future__ import annotations

import math

import pytest
import torch

from xpress_exp.decode import PositionNoise, random_stream, sample_token
from xpress_exp.law import Truncation

CPU = torch.device("cpu")


def test_a_row_depends_on_key_and_position_only() -> None:
    first, second = (PositionNoise(CPU, 7, "prompt", 1.0) for _ in range(2))
    forward = [first.row(position) for position in range(6)]
    torch.rand(3)
    backward = [second.row(position) for position in reversed(range(6))][::-1]
    assert all(torch.equal(a, b) for a, b in zip(forward, backward, strict=True))
    first.at(4)  # drops what lies before
    assert torch.equal(first.row(1), forward[1])
    assert len({tuple(row.tolist()) for row in forward}) == 6
    other = PositionNoise(CPU, 7, "prompt", 0.7)
    assert not any(torch.equal(other.row(k), forward[k]) for k in range(6))


def test_a_block_starts_at_its_position_and_selects_columns() -> None:
    noise = PositionNoise(CPU, 7, 0)
    logits = torch.zeros(1, 3, 7)
    table = noise.at(4).gumbel(logits, None)
    assert torch.equal(table, torch.stack([noise.row(k) for k in (4, 5, 6)])[None])
    ids = torch.tensor([5, 0])
    assert torch.equal(noise.at(4).gumbel(logits[..., :2], ids), table[..., ids])
    with pytest.raises(ValueError, match="got 2 rows"):
        noise.at(4).gumbel(logits.expand(2, -1, -1), None)


def test_frequencies_over_positions_follow_the_law() -> None:
    """The argmax under the noise of 20,000 positions is a sample of the truncated law."""
    count, logits = 20_000, torch.tensor([[0.0, 1.0, 2.0, 0.5]])
    noise = PositionNoise(CPU, 4, "frequencies")
    drawn = torch.cat([sample_token(logits, 0.8, noise.at(k), Truncation(3)) for k in range(count)])
    law = torch.tensor([0.0, *torch.tensor([1.0, 2.0, 0.5]).div(0.8).softmax(-1).tolist()])
    seen = torch.bincount(drawn, minlength=4)
    assert seen[0] == 0
    expected = count * law[1:].double()
    chi_square = float(((seen[1:] - expected) ** 2 / expected).sum())
    assert (chi_square - 2) / math.sqrt(4) < 4.5


def test_a_stream_is_filtered_too() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 0.5]]).expand(4000, 4)
    drawn = sample_token(logits, 1.0, random_stream(CPU, 1), Truncation(None, 0.7))
    # softmax .08 .21 .58 .13: the best two hold .79
    assert set(drawn.tolist()) == {1, 2}
