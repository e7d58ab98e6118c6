"""The performance model against loops that play the rounds, and closed forms."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from xpress_exp.metric.cost import (
    NO_HEAD,
    Curve,
    DraftProfile,
    Latencies,
    PassCost,
    Prediction,
    at_batch,
    conditional_acceptance,
    expected_committed,
    predict,
    predictions,
    recommend,
)
from xpress_exp.types import Round

# arXiv 2608.02438, Table 3: microseconds of K xPress passes; the Markov head's serial decode.
XPRESS_US = {1: 150, 2: 227, 3: 301, 4: 379, 5: 452, 6: 530, 7: 603, 8: 681}
MARKOV_US = 601

MakeTrace = Callable[..., Any]


def latencies(**changes: Any) -> Latencies:
    values: dict[str, Any] = {
        "step_ms": 10.0,
        "verify": Curve(((1, 10.0), (2, 11.0), (4, 16.0))),
        "draft_ms": {4: 2.0},
        "head": {("none", 4): NO_HEAD, ("xpress", 4): PassCost(0.5, 0.25)},
        "other_ms": 0.5,
    }
    return Latencies(**{**values, **changes})


def profile(
    conditional: Sequence[float], head: str = "xpress", passes: float = 2.0, block: int = 4
) -> DraftProfile:
    return DraftProfile(head, 2, block, tuple(conditional), passes)


def played(conditional: Sequence[float], length: int, rounds: int) -> tuple[float, float]:
    """Mean tokens per round and its standard error, draft by draft until one is refused."""
    draw = random.Random(0)
    counts = []
    for _ in range(rounds):
        tokens = 0
        for place in range(length):
            if draw.random() >= conditional[place]:
                break
            tokens += 1
        counts.append(tokens + 1)
    mean = sum(counts) / rounds
    return mean, math.sqrt(sum((c - mean) ** 2 for c in counts) / rounds / rounds)


@pytest.mark.parametrize("length", [0, 1, 3, 5])
def test_expected_tokens_are_those_of_played_rounds(length: int) -> None:
    conditional = (0.9, 0.5, 0.8, 0.7, 0.95)
    mean, error = played(conditional, length, 40_000)
    assert expected_committed(conditional, length) == pytest.approx(mean, abs=4 * error + 1e-12)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_constant_acceptance_is_a_geometric_sum(share: float) -> None:
    for length in range(8):
        wanted = (1 - share ** (length + 1)) / (1 - share)
        assert expected_committed([share] * 7, length) == pytest.approx(wanted)
    assert expected_committed([1.0] * 7, 7) == 8


def test_a_shorter_verified_block_is_exact_on_the_measured_rounds(trace: MakeTrace) -> None:
    draw = random.Random(1)
    accepted = [draw.choice([0, 0, 1, 2, 3]) for _ in range(50)]
    traces = [
        trace([(count, count + 1) for count in part]) for part in (accepted[:20], accepted[20:])
    ]
    found = conditional_acceptance(traces)
    for length in range(4):
        by_hand = sum(1 + min(count, length) for count in accepted) / len(accepted)
        assert expected_committed(found, length) == pytest.approx(by_hand)


def test_conditional_acceptance_counts_only_rounds_that_got_there(trace: MakeTrace) -> None:
    def rounds(*counts: tuple[int, int]) -> Any:
        made = trace([(0, 1)])
        items = tuple(
            Round(drafted, accepted, accepted + 1, 1, 1, 1, 1) for drafted, accepted in counts
        )
        return type(made)(**{**vars(made), "rounds": items})

    # Draft 2 is asked of the rounds that accepted draft 1 and drafted two.
    found = conditional_acceptance([rounds((3, 0), (3, 2), (1, 1)), rounds((3, 1), (3, 3))])
    assert found == (4 / 5, 2 / 3, 1 / 2)
    never = conditional_acceptance([rounds((3, 0), (3, 0))])
    assert never[0] == 0 and math.isnan(never[1]) and math.isnan(never[2])
    # No round got to draft 2, and none is expected to.
    assert expected_committed(never, 3) == 1
    assert conditional_acceptance([trace()]) == ()


def test_unknown_or_impossible_acceptance_is_refused() -> None:
    with pytest.raises(ValueError, match="acceptance of draft 2 is nan; measure"):
        expected_committed([0.5, math.nan], 2)
    assert expected_committed([0.5, math.nan], 1) == 1.5
    with pytest.raises(ValueError, match=r"draft 1 is 1\.5"):
        expected_committed([1.5], 1)
    for length in (-1, 3):
        with pytest.raises(ValueError, match=f"verify_length={length} must be 0 to 2"):
            expected_committed([0.5, 0.5], length)


def test_a_curve_knows_its_points_the_lines_between_and_nothing_else() -> None:
    curve = Curve(((1, 10.0), (2, 11.0), (6, 31.0)))
    assert [curve.at(size) for size in (1, 1.5, 2, 3, 6)] == [10, 10.5, 11, 16, 31]
    for size in (0.9, 7):
        with pytest.raises(ValueError, match="outside the measured 1 to 6; measure it"):
            curve.at(size)
    for points in ((), ((2, 1.0), (1, 2.0)), ((1, 1.0), (1, 2.0))):
        with pytest.raises(ValueError, match="one or more, ascending"):
            Curve(points)
    for ms in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="leave the point out"):
            Curve(((1, ms),))


def test_passes_are_a_line() -> None:
    line = PassCost.fitted({1: 3.0, 2: 5.0, 4: 9.0})
    assert (line.fixed_ms, line.pass_ms) == pytest.approx((1.0, 2.0))
    assert line.at(2.5) == pytest.approx(6.0)
    with pytest.raises(ValueError, match="a line needs two"):
        PassCost.fitted({3: 1.0})


def test_the_published_refinement_times_follow_from_two_of_them() -> None:
    line = PassCost.fitted(
        {passes: us / 1000 for passes, us in XPRESS_US.items() if passes in (1, 8)}
    )
    for passes, us in XPRESS_US.items():
        assert line.at(passes) == pytest.approx(us / 1000, rel=0.01)
    # Published: each pass adds about 75 us, 1.6 x at K = 4, 1.13 x at K = 6, equal near K = 7.
    assert line.pass_ms == pytest.approx(0.075, abs=0.001)
    assert round(MARKOV_US / 1000 / line.at(4), 1) == 1.6
    assert MARKOV_US / 1000 / line.at(6) == pytest.approx(1.13, abs=0.01)
    assert round((MARKOV_US / 1000 - line.fixed_ms) / line.pass_ms) == 7


def test_the_example_of_the_guide_gives_the_table_of_the_guide() -> None:
    page = (Path(__file__).parents[3] / "docs" / "guide" / "choose-a-setting.md").read_text()
    [code] = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    names: dict[str, Any] = {}
    exec(code, names)
    whole = {item.profile.head: item for item in names["found"] if item.verify_length == 15}
    # Table 1: tau at temperature 0, from which the acceptances of the guide follow.
    for head, tau in (("none", 6.25), ("markov", 7.64), ("xpress", 8.02)):
        assert whole[head].committed == pytest.approx(tau, abs=0.01)
    told = {
        "time of a pass": f"{1000 * names['refiner'].pass_ms:.0f} us",
        "Markov over xPress, K = 4": f"{0.601 / names['refiner'].at(4):.2f}",
        "Markov over xPress, K = 6": f"{0.601 / names['refiner'].at(6):.2f}",
        "speed-up of the bare drafter": f"{whole['none'].speedup:.1f} (gave the step)",
        "speed-up with the Markov head": f"{whole['markov'].speedup:.1f}",
        "speed-up with xPress, K = 6": f"{whole['xpress'].speedup:.1f}",
    }
    for row, value in told.items():
        assert re.search(rf"^\| {re.escape(row)} \| .* \| {re.escape(value)} \|$", page, re.M), row
    assert (names["best"].profile.head, names["best"].verify_length) == ("xpress", 15)


def test_a_setting_by_hand() -> None:
    found = predict(latencies(), profile([0.5, 0.5, 0.0]), 2)
    assert found.committed == 1.75
    # 3 tokens are read: the anchor and two drafts, half way between 11 and 16 ms.
    assert found.round_ms == pytest.approx(2.0 + (0.5 + 2 * 0.25) + 13.5 + 0.5)
    assert found.tokens_per_second == pytest.approx(1.75 / 0.017)
    assert found.speedup == pytest.approx(1.75 / 0.017 / 100)
    assert found.unknown == ""


def test_a_batch_gives_every_row_its_tokens() -> None:
    found = predict(latencies(batch=8), profile([0.5, 0.5, 0.0]), 2)
    assert found.tokens_per_second == pytest.approx(8 * 1.75 / 0.017)
    assert found.speedup == pytest.approx(1.75 / 0.017 / 100)


def test_time_of_played_rounds_gives_the_predicted_rate() -> None:
    conditional = (0.8, 0.6, 0.4)
    table = latencies()
    for length in (1, 2, 3):
        mean, error = played(conditional, length, 40_000)
        seconds = (2.0 + 1.0 + table.verify.at(length + 1) + 0.5) / 1000
        rate = predict(table, profile(conditional), length).tokens_per_second
        assert rate == pytest.approx(mean / seconds, abs=4 * error / seconds)


@pytest.mark.parametrize(
    ("table", "way", "length", "reason"),
    [
        ({"draft_ms": {8: 2.0}}, {}, 2, "no drafter time at block size 4"),
        ({"head": {}}, {}, 2, "no time of head xpress at block size 4"),
        ({"verify": Curve(((1, 1.0), (2, 2.0)))}, {}, 2, "size 3 lies outside"),
        ({"draft_ms": {4: math.nan}}, {}, 2, "would take nan ms"),
        ({}, {"conditional": (0.5, math.nan, 0.5)}, 2, "acceptance of draft 2 is nan"),
        ({}, {}, 4, "verify_length=4"),
    ],
)
def test_what_was_not_measured_is_unknown(
    table: dict[str, Any], way: dict[str, Any], length: int, reason: str
) -> None:
    found = predict(latencies(**table), profile(way.get("conditional", (0.5, 0.5, 0.5))), length)
    assert reason in found.unknown
    numbers = (found.committed, found.round_ms, found.tokens_per_second, found.speedup)
    assert all(math.isnan(number) for number in numbers)


def test_the_best_of_all_settings() -> None:
    ways = [
        profile([0.9, 0.1, 0.1]),
        profile([0.6, 0.6, 0.6], "none", 0.0),
        profile([0.9], "gru"),
    ]
    found = predictions(latencies(), ways)
    lengths = [(item.profile.head, item.verify_length) for item in found]
    assert lengths == [
        *(("xpress", n) for n in (1, 2, 3)),
        *(("none", n) for n in (1, 2, 3)),
        ("gru", 1),
    ]
    rates: dict[Any, float] = {}
    for way, head_ms in ((ways[0], 1.0), (ways[1], 0.0)):
        for length, verify_ms in ((1, 11.0), (2, 13.5), (3, 16.0)):
            tokens = sum(math.prod(way.conditional[:i]) for i in range(length + 1))
            rates[way.head, length] = tokens / (2.5 + head_ms + verify_ms)
    best = recommend(found)
    assert (best.profile.head, best.verify_length) == max(rates, key=lambda key: rates[key])
    assert best.verify_length == 1  # a long block does not pay: the case tests something


def test_nothing_known_cannot_be_recommended() -> None:
    with pytest.raises(ValueError, match="no setting was given"):
        recommend([])
    unknown = [Prediction(profile([0.5]), 1, 1, unknown=why) for why in ("b", "a", "b")]
    with pytest.raises(ValueError, match="recommended: a; b"):
        recommend(unknown)


def test_between_two_batches_every_time_is_interpolated() -> None:
    low = latencies()
    high = latencies(
        batch=9,
        step_ms=18.0,
        verify=Curve(((1, 18.0), (4, 80.0), (8, 90.0))),
        draft_ms={4: 10.0, 8: 1.0},
        head={("xpress", 4): PassCost(8.5, 8.25)},
        other_ms=8.5,
    )
    found = at_batch([high, low], 3)  # a quarter of the way
    assert (found.batch, found.step_ms, found.other_ms) == (3, 12.0, 2.5)
    # Only what both batches have: sizes 1 and 4, block size 4, one head.
    assert found.verify.points == ((1, 12.0), (4, 32.0))
    assert found.draft_ms == {4: 4.0}
    assert found.head == {("xpress", 4): PassCost(2.5, 2.25)}
    assert at_batch([low, high], 9) is high
    for batch in (0, 10):
        with pytest.raises(ValueError, match=r"outside the measured \[1, 9\]"):
            at_batch([low, high], batch)
