import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from xpress_exp.report import collect, write_figures
from xpress_exp.report.figure import arm_styles, seed_mean

PNG = b"\x89PNG\r\n\x1a\n"


def test_all_figures_are_written(tmp_path: Path, points: Any) -> None:
    names = write_figures(tmp_path, collect(points, "demo"))
    assert sorted(names) == [
        "accept_by_position.png",
        "speedup.png",
        "tau.png",
        "tau_by_iterations.png",
    ]
    for name in names:
        content = (tmp_path / name).read_bytes()
        assert content.startswith(PNG)
        assert len(content) > 10_000
    assert sorted(path.name for path in tmp_path.glob("*.png")) == sorted(names)


def test_no_sweep_no_sweep_figure(tmp_path: Path, point: Any) -> None:
    rows = collect([point("xpress", 2, temperatures=(0.0,))], "demo")
    assert "tau_by_iterations.png" not in write_figures(tmp_path, rows)


def test_no_results_no_figures(tmp_path: Path, point: Any) -> None:
    assert write_figures(tmp_path, collect([point("gru", 2, written=0)], "demo")) == []
    assert list(tmp_path.glob("*.png")) == []


def test_seeds_are_averaged_with_their_range(point: Any) -> None:
    row = collect([point("xpress", 2, temperatures=(0.0,))], "demo")[0]
    assert seed_mean([row], "tau") == (row.tau, row.tau_ci_low, row.tau_ci_high)
    seeds = [replace(row, tau=tau) for tau in (2.0, 3.0, 2.5)]
    assert seed_mean(seeds, "tau") == (pytest.approx(2.5), 2.0, 3.0)
    bare = replace(row, speedup_ci_low=math.nan)
    assert seed_mean([bare], "speedup") == (row.speedup, row.speedup, row.speedup)


def test_arms_have_distinct_styles_and_bare_drafters_are_grey(points: Any) -> None:
    styles = arm_styles([row for row in collect(points, "demo")])
    assert len({color for color, _ in styles.values()}) == len(styles)
    assert len(set(styles["none"][0][1::2])) == 1
