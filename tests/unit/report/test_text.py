import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from xpress_exp.report import COLUMNS, collect, results_markdown, terminal_table, write_csv
from xpress_exp.report.label import variant_labels
from xpress_exp.report.summary import verdict


def test_labels_name_what_varies_within_an_arm(points: Any, point: Any) -> None:
    cold = [row for row in collect(points, "demo") if row.temperature == 0]
    assert variant_labels(cold) == [
        "none",
        "markov jacobi K=1",
        "markov jacobi K=2",
        "markov jacobi K=3",
        "markov sequential",
        "xpress",
        "gru",
        "broken",
    ]
    seeds = collect([point("gru", 1, seed=s, temperatures=(0.0,)) for s in (0, 1)], "demo")
    assert variant_labels(seeds) == ["gru seed 0", "gru seed 1"]
    assert variant_labels(seeds, hide=("seed",)) == ["gru", "gru"]
    options = [point("gru", 1, settings=f"head.mix={mix}") for mix in ("strict", "inclusive")]
    assert variant_labels(collect(options, "demo")[::2]) == [
        "gru head.mix=strict",
        "gru head.mix=inclusive",
    ]


def test_csv_has_a_row_per_point_and_empty_cells_for_the_unknown(
    tmp_path: Path, points: Any
) -> None:
    rows = collect(points, "demo")
    write_csv(tmp_path / "results.csv", rows)
    with (tmp_path / "results.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert tuple(read[0]) == COLUMNS
    assert len(read) == len(rows)
    for line, row in zip(read, rows, strict=True):
        assert line["status"] == row.status
        assert (float(line["tau"]) if line["tau"] else math.nan) == pytest.approx(
            row.tau, nan_ok=True
        )
    assert read[0]["num_iterations"] == ""
    positions = tuple(float(share) for share in read[0]["accept_by_position"].split(";"))
    assert positions == rows[0].accept_by_position


def test_terminal_table_is_aligned_and_names_every_row(points: Any) -> None:
    text = terminal_table(collect(points, "demo"))
    panel = text.split("\n\n")[0].splitlines()[1:]
    assert len(panel) == 1 + len(points)
    assert "missing" in next(line for line in panel if line.startswith("gru"))
    assert len({len(line.rstrip()) for line in panel}) == 1
    assert max(len(line) for line in panel) < 120
    assert "broken-s0-, heldout, temperature 0: failed: train: loss is nan at step 3" in text


def test_markdown_tells_origin_verdict_differences_and_gaps(points: Any) -> None:
    text = results_markdown("demo", collect(points, "demo"), ["tau.png"])
    assert "Commit `abc123-dirty`; machine: cpu; 5 to 12 prompts per row." in text
    assert "tau = committed tokens / target verifications" in text
    assert "speculative decoding beat autoregressive decoding: the highest measured" in text
    assert "tau minus tau of `none` [95 %]" in text
    assert "## By domain" in text
    assert "- gru-s0-, heldout, temperature 1: missing" in text
    assert "- broken-s0-, heldout, temperature 0: failed: train: loss is nan at step 3" in text
    assert "![tau.png](tau.png)" in text


def test_verdict_is_plain_about_every_outcome(point: Any) -> None:
    row = collect([point("xpress", 2, temperatures=(0.0,))], "demo")[0]

    def said(low: float, high: float) -> str:
        changed = replace(row, speedup=(low + high) / 2, speedup_ci_low=low, speedup_ci_high=high)
        return verdict([changed])

    assert said(1.1, 1.3).startswith("speculative decoding beat autoregressive decoding")
    assert said(0.7, 0.9).startswith("speculative decoding did not beat")
    assert said(0.9, 1.1).startswith("no difference")
    unknown = replace(row, speedup_ci_low=math.nan, speedup_ci_high=math.nan, num_prompts=3)
    assert "with 3 prompts (an interval needs 12)" in verdict([unknown])
    assert "no variant has a measured speed" in verdict([replace(row, speedup=math.nan)])


def test_the_best_of_several_is_called_chosen(point: Any) -> None:
    row = collect([point("xpress", 2, temperatures=(0.0,))], "demo")[0]
    best = replace(row, speedup=1.2, speedup_ci_low=1.1, speedup_ci_high=1.3)
    equal = replace(row, arm="none", speedup=1.0, speedup_ci_low=0.9, speedup_ci_high=1.1)
    unmeasured = replace(row, arm="gru", speedup=math.nan)
    text = verdict([equal, best, unmeasured])
    assert "1.20 [1.10, 1.30]" in text
    assert "of 2 variants, chosen on the same prompts: its interval does not cover" in text
    assert text.endswith("the interval of 1 of 2 variants lies above 1.")
    assert "chosen" not in verdict([best])


def test_nothing_measured_still_makes_a_report(point: Any) -> None:
    rows = collect([point("gru", 2, written=0)], "demo")
    text = results_markdown("demo", rows, [])
    assert "Nothing has been measured yet." in text
    assert "No arm `none` was measured beside another arm" in text
    assert "missing" in terminal_table(rows)
