import math
from typing import Any

import pytest

from xpress_exp.metric import acceptance, tau_difference, tau_interval


def test_counts_and_ratios_by_hand(trace: Any) -> None:
    # Prompt one: 2 of 3 accepted (+1), then 1 of 3 (+1) of which one token was cut: 3 + 1 = 4.
    # Prompt two: all 3 accepted, cut to 1.
    found = acceptance([trace([(2, 3), (1, 1)]), trace([(3, 1)])])
    assert (found.num_prompts, found.num_tokens, found.num_rounds) == (2, 5, 3)
    assert (found.num_accepted, found.num_drafted) == (6, 9)
    assert found.tau == pytest.approx(5 / 3)
    assert found.tau_macro == pytest.approx((4 / 2 + 1 / 1) / 2)
    assert found.tau_uncut == pytest.approx((6 + 3) / 3)
    assert found.accepted_per_drafted == pytest.approx(6 / 9)
    assert found.by_position == pytest.approx((3 / 3, 2 / 3, 1 / 3))


def test_prompts_without_rounds_are_counted_but_carry_no_ratio(trace: Any) -> None:
    found = acceptance([trace(), trace([(0, 1)])])
    assert (found.num_prompts, found.tau, found.tau_macro) == (2, 1.0, 1.0)
    empty = acceptance([trace()])
    for ratio in (empty.tau, empty.tau_macro, empty.tau_uncut, empty.accepted_per_drafted):
        assert math.isnan(ratio)
    assert empty.by_position == ()


def test_no_prompts_at_all() -> None:
    found = acceptance([])
    assert found.num_prompts == 0
    assert math.isnan(found.tau)
    assert math.isnan(tau_interval([]).low)


def test_identical_prompts_have_a_point_interval(trace: Any) -> None:
    interval = tau_interval([trace([(1, 2), (2, 3)])] * 5)
    assert interval.low == interval.high == 2.5


def test_one_prompt_has_no_interval(trace: Any) -> None:
    interval = tau_interval([trace([(1, 2)])])
    assert math.isnan(interval.low)
    assert "1 prompts" in interval.note


def test_interval_without_any_round_is_unknown(trace: Any) -> None:
    assert math.isnan(tau_interval([trace(), trace()]).high)


def test_difference_pairs_prompts(trace: Any) -> None:
    # Prompts differ a lot, the arm always commits one token more per round: no variance is left.
    arm = {str(i): trace([(0, 1 + i)] * 4) for i in range(6)} | {"only here": trace([(3, 4)])}
    none = {str(i): trace([(0, i)] * 4) for i in range(6)}
    found = tau_difference(arm, none)
    assert found.num_prompts == 6
    assert found.difference == pytest.approx(1.0)
    assert (found.interval.low, found.interval.high) == (pytest.approx(1.0), pytest.approx(1.0))


def test_difference_without_common_prompts(trace: Any) -> None:
    found = tau_difference({"a": trace([(1, 2)])}, {"b": trace([(1, 2)])})
    assert found.num_prompts == 0
    assert math.isnan(found.difference)
    assert math.isnan(found.interval.low)
