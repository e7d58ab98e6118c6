"""The recommended setting of crafted rows, against prices and counts added up by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xpress_exp.metric import EvalRecord
from xpress_exp.report import ResultRow, recommendation, results_markdown, terminal_recommendation
from xpress_exp.types import Round, SampleTrace


def trace(rounds: Sequence[Round], step_ms: Sequence[float], decode_ms: float) -> SampleTrace:
    tokens = 1 + (sum(item.committed for item in rounds) or len(step_ms))
    return SampleTrace(
        "p",
        "math",
        tuple(range(tokens)),
        tuple(rounds),
        4,
        1.0,
        decode_ms,
        tuple(step_ms),
        "length",
    )


def row(
    arm: str,
    accepted: Sequence[int],
    drafted: int,
    costs: tuple[float, float, float],
    other_ms: float = 0.0,
    **changes: Any,
) -> ResultRow:
    """One prompt; the baseline takes 10 ms a token."""
    rounds = [Round(drafted, count, count + 1, 2, *costs) for count in accepted]
    decoded = trace(rounds, (), (sum(costs) + other_ms) * len(rounds))
    record = EvalRecord("p", "math", 0.0, 0, 1, trace((), (10.0, 10.0), 20.0), decoded)
    values: dict[str, Any] = {
        "experiment": "e", "run": arm, "arm": arm, "head": arm, "solver": "jacobi",
        "num_iterations": 2, "verifier": "greedy", "rank": 4, "block_size": drafted + 1, "seed": 0,
        "task": "sums", "temperature": 0.0, "draft_temperature": 0.0, "num_prompts": 1,
        "num_rounds": len(rounds), "records": (record,),
    }  # fmt: skip
    return ResultRow(**{**values, **changes})


def test_the_best_variant_and_verify_length_is_told_with_its_rate() -> None:
    # Verify: 10 ms for 1 token, 16 for 4 and so 12 for 2. One draft verified of the first row:
    # (1 + 2/3) tokens in 1 + 1 + 12 + 2 ms; two give 2 in 18, three 7/3 in 20; the second row less.
    rows = [
        row("good", [3, 1, 0], 3, (1.0, 1.0, 16.0), other_ms=2.0),
        row("bad", [0, 0, 1], 3, (1.0, 0.0, 16.0)),
    ]
    [line] = recommendation(rows)
    best = max((5 / 3) / 16, 2 / 18, (7 / 3) / 20)
    assert best == (7 / 3) / 20
    assert line.startswith("sums, temperature 0: good (block size 4), verifying 3 of 3 drafts: ")
    assert f"{1000 * best:.1f} tokens/s predicted against 100.0" in line
    assert f"({10 * best:.2f} x)" in line


def test_a_shorter_verified_block_is_found() -> None:
    # Drafts behind the first are never accepted: verifying them only costs.
    [line] = recommendation([row("good", [1, 1, 1, 0], 3, (1.0, 1.0, 16.0))])
    assert "verifying 1 of 3 drafts" in line
    assert f"{1000 * 1.75 / 14:.1f} tokens/s" in line


def test_a_loss_is_called_a_loss() -> None:
    [line] = recommendation([row("bad", [0, 0, 1], 3, (9.0, 0.0, 16.0))])
    assert "no setting is predicted to beat plain decoding; the nearest is bad" in line


def test_every_panel_has_its_own_line_and_a_table_without_times_none() -> None:
    good, timeless = row("a", [1], 3, (1.0, 1.0, 16.0)), row("a", [1], 3, (1.0, 1.0, 0.0))
    other = row("b", [3], 3, (1.0, 1.0, 16.0), task="code")
    assert [line.split(",")[0] for line in recommendation([good, other])] == ["sums", "code"]
    assert recommendation([timeless]) == []
    assert recommendation([]) == []
    assert terminal_recommendation([timeless]) == ""
    assert "Recommended" not in results_markdown("e", [timeless], [])


def test_the_reader_is_warned_that_it_was_chosen_on_the_same_prompts() -> None:
    rows = [row("a", [1], 3, (1.0, 1.0, 16.0))]
    for text in (terminal_recommendation(rows), results_markdown("e", rows, [])):
        assert "sums, temperature 0: " in text
        assert "on which the setting is also chosen" in text
