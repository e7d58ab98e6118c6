"""Gumbel noise gives exact draws and is finite at the ends of the uniform interval."""

from __future__ import annotations

import math

import pytest
import torch

from xpress_exp.solver.gumbel import gumbel_like


def test_argmax_frequencies_are_the_softmax():
    generator = torch.Generator().manual_seed(0)
    logits = torch.tensor([0.3, -1.2, 2.0, 0.0, -3.0])
    law, rows = logits.softmax(0).double(), 200_000
    tokens = (logits + gumbel_like(logits.expand(rows, 5), generator)).argmax(-1)
    counts = torch.bincount(tokens, minlength=5).double()
    chi_square = float(((counts - rows * law) ** 2 / (rows * law)).sum())
    assert abs(chi_square - 4) / math.sqrt(8) < 4.5


def test_moments_are_those_of_a_standard_gumbel():
    noise = gumbel_like(torch.zeros(400_000), torch.Generator().manual_seed(1)).double()
    assert abs(float(noise.mean()) - 0.5772157) < 0.01
    assert abs(float(noise.var()) - math.pi**2 / 6) < 0.03


@pytest.mark.parametrize("uniform", [0.0, 1 - 2.0**-24])
def test_extreme_uniforms_stay_finite(monkeypatch, uniform):
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.full(shape, uniform))
    assert torch.isfinite(gumbel_like(torch.zeros(3), None)).all()


def test_noise_is_float32_and_reproducible():
    logits = torch.zeros(2, 3, dtype=torch.float64)
    first, again = (gumbel_like(logits, torch.Generator().manual_seed(4)) for _ in range(2))
    assert first.dtype == torch.float32
    assert torch.equal(first, again)


def test_the_tail_reaches_tokens_of_probability_1e_15(monkeypatch):
    # In float32 the largest uniform below 1 gives 16.6: rarer tokens would never be drawn.
    monkeypatch.setattr(
        torch,
        "rand",
        lambda shape, **options: torch.full(shape, 1 - 2.0**-53, dtype=options["dtype"]),
    )
    assert float(gumbel_like(torch.zeros(1), None)) == pytest.approx(53 * math.log(2), rel=1e-3)
