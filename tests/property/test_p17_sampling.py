"""P17: Gumbel noise draws from the softmax, independently for every request; two laws under the
same noise agree as often as the theory says."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from xpress_exp.decode import PositionNoise, random_stream
from xpress_exp.solver.gumbel import gumbel_like

ROWS = 60_000


def z_score(counts: Tensor, law: Tensor) -> float:
    """(chi-square - df) / sqrt(2 df); every expected count is above 5."""
    expected = counts.sum() * law.double()
    assert float(expected.min()) > 5
    df = len(law) - 1
    return (float(((counts - expected) ** 2 / expected).sum()) - df) / math.sqrt(2 * df)


def draws(logits: Tensor, request: str, rows: int = ROWS) -> Tensor:
    generator = random_stream(torch.device("cpu"), 0, request)
    return (logits + gumbel_like(logits.expand(rows, -1), generator)).argmax(-1)


@pytest.mark.property("P17")
@pytest.mark.parametrize("spread", [0.1, 1.0, 2.0])
def test_p17_argmax_frequencies_are_the_softmax(spread: float) -> None:
    logits = spread * torch.tensor([0.3, -1.2, 2.0, 0.0, -1.5, 1.1])
    counts = torch.bincount(draws(logits, f"frequency {spread}"), minlength=6).double()
    assert abs(z_score(counts, logits.softmax(0))) < 4.5


@pytest.mark.property("P17")
def test_p17_requests_and_rows_are_independent() -> None:
    """Joint counts of two requests' draws, and of neighbouring rows of one, are products."""
    logits = torch.tensor([0.3, -0.7, 1.0, 0.0])
    law = logits.softmax(0)
    joint = (law[:, None] * law).flatten()
    first, second = draws(logits, "one"), draws(logits, "two")
    pairs = {"requests": (first, second), "rows": (first[::2], first[1::2])}
    for name, (left, right) in pairs.items():
        counts = torch.bincount(4 * left + right, minlength=16).double()
        assert abs(z_score(counts, joint)) < 4.5, name


@pytest.mark.property("P17")
def test_p17_noise_keyed_by_position_is_independent_between_positions_and_keys() -> None:
    """Joint counts over 3,000 keys of the draws at two positions, and at one position of two."""
    logits = torch.tensor([0.3, -0.7, 1.0, 0.0])
    law = logits.softmax(-1)
    here, there = [], []
    for key in range(3000):
        noise = PositionNoise(torch.device("cpu"), 4, "independent", key)
        here.append((logits + noise.row(7)).argmax())
        there.append((logits + noise.row(8)).argmax())
    first, second = torch.stack(here), torch.stack(there)
    pairs = {"positions": (first, second), "keys": (first[::2], first[1::2])}
    for name, (left, right) in pairs.items():
        counts = torch.bincount(4 * left + right, minlength=16).double()
        assert abs(z_score(counts, (law[:, None] * law).flatten())) < 4.5, name


@pytest.mark.property("P17")
@pytest.mark.parametrize("seed", range(6))
def test_p17_shared_noise_agrees_as_often_as_the_theory_says(seed: int) -> None:
    """P(both argmax = v) = 1 / sum_u max(p_u / p_v, q_u / q_v), at least (1 - TV) / (1 + TV)."""
    p_logits, q_logits = torch.randn(2, 5, generator=torch.Generator().manual_seed(seed))
    p, q = p_logits.double().softmax(0), q_logits.double().softmax(0)
    ratios = torch.maximum(p[None] / p[:, None], q[None] / q[:, None])
    exact = float((1 / ratios.sum(1)).sum())
    variation = float((p - q).abs().sum()) / 2
    share = float((draws(p_logits, "same") == draws(q_logits, "same")).double().mean())
    assert exact >= (1 - variation) / (1 + variation)
    assert abs(share - exact) < 4.5 * math.sqrt(exact * (1 - exact) / ROWS)
    apart = float((draws(p_logits, "same") == draws(q_logits, "other")).double().mean())
    assert apart < share - 0.05
