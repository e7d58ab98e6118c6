import math
from typing import Any

import pytest

from xpress_exp.metric import acceptance, speedup
from xpress_exp.report import COLUMNS, collect, differences


def test_every_expected_point_has_a_row_per_temperature(points: Any) -> None:
    rows = collect(points, "demo")
    assert len(rows) == 2 * len(points)
    by_arm = {row.arm: row.status for row in rows}
    assert by_arm == {
        "none": "ok",
        "markov": "ok",
        "xpress": "partial: 5 of 12 prompts",
        "gru": "missing",
        "broken": "failed: train: loss is nan at step 3",
    }
    assert {row.experiment for row in rows} == {"demo"}


def test_measured_columns_are_the_metrics_of_the_records(point: Any) -> None:
    row = collect([point("xpress", 2)], "demo")[0]
    counts = acceptance([record.arm for record in row.records])
    assert (row.num_tokens, row.num_rounds) == (counts.num_tokens, counts.num_rounds)
    assert row.tau == counts.tau == row.num_tokens / row.num_rounds
    assert row.accept_by_position == counts.by_position
    # 12 ms a round against 10 ms a token.
    assert row.break_even_tau == pytest.approx(1.2)
    assert row.speedup == pytest.approx(row.tau / 1.2) == speedup(row.records).ratio
    assert row.ar_tokens_per_second == pytest.approx(100.0)
    assert row.commit == "abc123-dirty"


def test_temperature_zero_is_greedy_and_counts_mismatches(point: Any) -> None:
    cold, warm = collect([point("xpress", 2)], "demo")
    assert (cold.verifier, cold.draft_temperature, cold.token_mismatches) == ("greedy", 0.0, 0)
    assert (warm.verifier, warm.draft_temperature, warm.token_mismatches) == (
        "rejection",
        1.0,
        None,
    )


def test_coupled_sampling_must_repeat_the_baseline(point: Any) -> None:
    expected = point("xpress", 2)
    expected.variant["verifier"] = "gumbel_coupled"
    assert [row.token_mismatches for row in collect([expected], "demo")] == [0, 0]


def test_a_broken_file_fails_its_own_rows_only(point: Any) -> None:
    good, bad = point("none", 1), point("xpress", 2)
    bad.records_file.write_text(bad.records_file.read_text()[:-20])
    rows = collect([bad, good], "demo")
    assert [row.status for row in rows[2:]] == ["ok", "ok"]
    assert all(row.status.startswith("failed: ") for row in rows[:2])
    assert "heldout.jsonl" in rows[0].status
    assert math.isnan(rows[0].tau)


def test_a_complete_measurement_outlives_a_later_failure(point: Any) -> None:
    assert collect([point("xpress", 2, failure="later")], "demo")[0].status == "ok"
    assert collect([point("gru", 2, written=3, failure="now")], "demo")[0].status == "failed: now"


def test_a_file_with_fewer_prompts_than_asked_for_is_complete(point: Any) -> None:
    expected = point("xpress", 2, num_prompts=7)
    expected.variant["num_prompts"] = 500
    assert collect([expected], "demo")[0].status == "ok"


def test_columns_end_with_what_readers_may_ignore() -> None:
    assert COLUMNS[:5] == ("experiment", "run", "arm", "head", "solver")
    assert COLUMNS[-4:] == ("accept_by_position", "status", "commit", "settings")
    assert len(set(COLUMNS)) == len(COLUMNS)


def test_differences_take_the_reference_of_the_same_seed_and_recipe(point: Any) -> None:
    rows = collect(
        [
            point("none", 1, temperatures=(0.0,)),
            point("none", 0, seed=1, temperatures=(0.0,)),
            point("none", 3, settings="optim.lr=1", recipe="other", temperatures=(0.0,)),
            point("xpress", 2, temperatures=(0.0,)),
            point("xpress", 2, seed=1, temperatures=(0.0,)),
            point("xpress", 2, seed=2, temperatures=(0.0,)),
        ],
        "demo",
    )
    found = differences(rows)
    assert [(item.row.seed, item.reference.tau) for item in found] == [
        (0, rows[0].tau),
        (1, rows[1].tau),
    ]
    assert found[0].tau.difference == pytest.approx(rows[3].tau - rows[0].tau)
    assert found[0].tau.num_prompts == 12
