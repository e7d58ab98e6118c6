"""Weights of eq. 15 by formula: the paper's anchor weight goes from 0.6 to 0.2."""

from __future__ import annotations

import math

import pytest

from xpress_exp.objective import CoTrainObjective, WeightSchedule


@pytest.mark.property("P13")
@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_first_and_last_step(name: str) -> None:
    schedule = WeightSchedule(0.6, 0.2, name)
    steps = 11
    weights = [schedule(step / (steps - 1)) for step in range(steps)]
    assert weights[0] == pytest.approx(0.6) and weights[-1] == pytest.approx(0.2)
    for step, weight in enumerate(weights):
        done = step / 10 if name == "linear" else (1 - math.cos(math.pi * step / 10)) / 2
        assert weight == pytest.approx(0.6 - 0.4 * done)


def test_constant_and_out_of_range() -> None:
    assert [WeightSchedule(0.6, 0.2, "constant")(p) for p in (0.0, 0.5, 1.0)] == [0.6] * 3
    linear = WeightSchedule(0.6, 0.2, "linear")
    assert linear(-1) == pytest.approx(0.6) and linear(1.5) == pytest.approx(0.2)
    with pytest.raises(ValueError, match=r"objective\.w_anchor\.schedule='step'"):
        WeightSchedule(0.6, 0.2, "step")


def test_zero_consistency_passes_are_refused() -> None:
    weight = {"start": 0.6, "end": 0.2, "schedule": "linear"}
    with pytest.raises(ValueError, match=r"objective\.consistency_passes=0"):
        CoTrainObjective(0.1, 0.9, 4.0, weight, 0.3, 0, 16)
