import math
from typing import Any

import pytest

from xpress_exp.metric import MIN_PROMPTS, speedup, tokens_per_second


def test_ratio_of_sums_by_hand(trace: Any, record: Any) -> None:
    # Baseline: 5 tokens in 50 ms, 1 in 30 ms: 80/6 ms a token. Arm: 5 in 20 ms, 1 in 20 ms: 40/6.
    pairs = [
        record(trace([(1, 2), (2, 3)], decode_ms=20.0), trace(step_ms=[10.0] * 5, decode_ms=50.0)),
        record(trace([(0, 1)], decode_ms=20.0), trace(step_ms=[30.0], decode_ms=30.0)),
    ]
    found = speedup(pairs)
    assert found.ratio == pytest.approx(2.0)
    assert math.isnan(found.interval.low)
    assert str(MIN_PROMPTS) in found.interval.note
    assert tokens_per_second([item.arm for item in pairs]) == pytest.approx(6 / 0.040)
    assert tokens_per_second([item.ar for item in pairs]) == pytest.approx(6 / 0.080)


def test_time_per_token_is_compared_when_lengths_differ(trace: Any, record: Any) -> None:
    pair = record(trace([(0, 2)], decode_ms=10.0), trace(step_ms=[10.0] * 4, decode_ms=40.0))
    assert speedup([pair]).ratio == pytest.approx(10.0 / 5.0)


def test_prompts_that_decode_nothing_are_left_out(trace: Any, record: Any) -> None:
    good = record(trace([(0, 1)], decode_ms=5.0), trace(step_ms=[10.0], decode_ms=10.0))
    found = speedup([good, record(trace(), trace())])
    assert (found.num_prompts, found.ratio) == (1, 2.0)
    assert math.isnan(speedup([record(trace(), trace())]).ratio)
    assert math.isnan(speedup([]).ratio)
    assert math.isnan(tokens_per_second([trace()]))


def test_twelve_equal_prompts_have_a_point_interval(trace: Any, record: Any) -> None:
    pair = record(trace([(0, 1)], decode_ms=5.0), trace(step_ms=[10.0], decode_ms=10.0))
    found = speedup([pair] * MIN_PROMPTS)
    assert (found.interval.low, found.interval.high) == (2.0, 2.0)


def test_interval_is_paired(trace: Any, record: Any) -> None:
    # Prompts differ tenfold in speed, always by the same factor: pairing leaves no spread.
    pairs = [
        record(
            trace([(0, 1)], decode_ms=1.0 + i), trace(step_ms=[3.0 + 3 * i], decode_ms=3.0 + 3 * i)
        )
        for i in range(MIN_PROMPTS)
    ]
    found = speedup(pairs)
    assert found.interval.low == pytest.approx(3.0)
    assert found.interval.high == pytest.approx(3.0)
