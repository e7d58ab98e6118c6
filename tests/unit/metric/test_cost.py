import math
from typing import Any

import pytest

from xpress_exp.metric import cost


def test_break_even_by_hand(trace: Any, record: Any) -> None:
    # Means over rounds, not prompts: two rounds of (1, 2, 4) and one of (4, 5, 10).
    pairs = [
        record(trace([(0, 1), (1, 2)]), trace(step_ms=[4.0, 6.0])),
        record(trace([(0, 1)], costs=(4.0, 5.0, 10.0)), trace(step_ms=[5.0])),
    ]
    found = cost(pairs)
    assert (found.draft_ms, found.head_ms, found.verify_ms) == (2.0, 3.0, 6.0)
    assert found.step_ms == 5.0
    assert found.break_even_tau == pytest.approx(11 / 5)


def test_missing_rounds_or_steps_give_nan(trace: Any, record: Any) -> None:
    assert math.isnan(cost([record(trace(), trace(step_ms=[5.0]))]).break_even_tau)
    assert math.isnan(cost([record(trace([(0, 1)]), trace())]).break_even_tau)
    assert math.isnan(cost([]).draft_ms)
