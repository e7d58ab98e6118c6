"""The benchmark runner: merging, missing figures, the table. Nothing here is timed."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The runner, with two scripts of its own instead of the real ones."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("bench", "table", "bars"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import bars
    import bench as runner

    owed: dict[str, Any] = {
        "first": {"fast": bars.at_least(2.0), "told": None},
        "second": {"small": bars.at_most(0.5)},
    }
    monkeypatch.setattr(bars, "FIGURES", owed)
    monkeypatch.setattr(runner, "FIGURES", owed)
    monkeypatch.setattr("table.FIGURES", owed)
    return runner


def figure(value: float, note: str = "", command: str = "", ends: Any = (None, None)) -> Any:
    return {"value": value, "low": ends[0], "high": ends[1], "command": command, "note": note}


WRITER = """
import json, sys
file = sys.argv[sys.argv.index("--json") + 1]
open(file, "w").write({content!r})
"""


def script(folder: Path, name: str, content: str) -> None:
    (folder / f"{name}.py").write_text(content)


def reports(folder: Path, name: str, **figures: Any) -> None:
    script(folder, name, WRITER.format(content=json.dumps(figures)))


def test_every_required_figure_of_the_list_has_a_script_and_its_bar() -> None:
    text = (BENCHMARKS / "bars.py").read_text()
    bars = {
        "round_overhead": "at_most(1.08)",
        "verify8_over_plain_single": "at_most(1.15)",
        "verify16_over_plain_single": "at_most(1.45)",
        "single_token_rate_over_transformers_generate": "at_least(1.2)",
        "xpress_k4_over_markov_sequential": "at_most(0.65)",
        "xpress_k6_over_markov_sequential": "at_most(0.95)",
        "batch8_rate_over_plain_batch1": "at_least(2.5)",
        "objective_peak_over_naive": "at_most(0.25)",
        "objective_time_over_naive": "at_most(1.1)",
        "train_rate_over_speculators_dflash_32": "at_least(1.0)",
        "train_rate_over_speculators_dflash_64": "at_least(1.0)",
        "train_rate_over_speculators_xpress_32": "at_least(1.15)",
        "train_rate_over_speculators_xpress_64": "at_least(1.15)",
        "train_peak_over_speculators_xpress_64": "at_most(0.5)",
        "train_step_over_floor_xpress_32": "at_most(1.35)",
        "train_step_over_floor_xpress_64": "at_most(1.35)",
        "regenerate_rate_over_generate": "at_least(3.0)",
        "cost_model_error": "at_most(0.10)",
        "cli_help_seconds": "None",
        "end_to_end_speedup_demo_xpress": "None",
    }
    for key, bar in bars.items():
        assert re.search(rf'"{key}": {re.escape(bar)}[,}}]', text), key


def test_nan_is_null_and_nothing_else_is_lost(bench: Any) -> None:
    entry = bench.cleaned(
        "first", {"value": 1.5, "low": math.nan, "high": math.inf, "note": "n", "extra": 1}
    )
    assert entry == {
        "value": 1.5,
        "low": None,
        "high": None,
        "command": "python benchmarks/first.py",
        "note": "n",
    }
    assert bench.cleaned("first", {"value": 0, "command": "make demo"})["value"] == 0.0
    assert bench.cleaned("first", {"command": "make demo"})["command"] == "make demo"
    assert bench.cleaned("first", {"value": True})["value"] is None


def test_a_new_run_replaces_the_figures_of_its_script_and_no_others(bench: Any) -> None:
    old = {
        "_about": {"scripts": {}},
        "fast": figure(1.0, command="python benchmarks/first.py"),
        "told": figure(2.0, command="make demo"),
        "gone": figure(3.0, command="python benchmarks/first.py --quick"),
        "small": figure(0.1, command="python benchmarks/second.py"),
        "kept": figure(0.1, command="python benchmarks/second.py"),
        "like": figure(0.1, command="python benchmarks/first.python.py"),
    }
    found = bench.merged(old, bench.Outcome("first", {"fast": figure(9.0), "new": figure(8.0)}))
    values = {key: entry["value"] for key, entry in found.items() if key != "_about"}
    assert values == {"fast": 9.0, "told": None, "new": 8.0, "small": 0.1, "kept": 0.1, "like": 0.1}
    assert found["told"]["note"] == "first.py did not report it"
    assert found["_about"] == old["_about"]


def test_a_failed_script_leaves_its_figures_empty_with_the_reason(bench: Any) -> None:
    old = {"fast": figure(1.0, command="python benchmarks/first.py")}
    found = bench.merged(old, bench.Outcome("first", reason="it broke"))
    assert {key: (entry["value"], entry["note"]) for key, entry in found.items()} == {
        "fast": (None, "it broke"),
        "told": (None, "it broke"),
    }
    assert bench.problems(found, ["first", "second"]) == [
        "fast: it broke",
        "told: it broke",
        "small: never measured; run python benchmarks/second.py",
    ]


def test_a_script_is_run_in_a_process_of_its_own(bench: Any, tmp_path: Path) -> None:
    reports(tmp_path, "good", a=figure(1.0))
    found = bench.run("good", False, tmp_path)
    assert (found.figures, found.reason) == ({"a": figure(1.0)}, "")
    script(tmp_path, "bad", "raise ValueError('no such thing')")
    assert bench.run("bad", False, tmp_path).reason == (
        "python benchmarks/bad.py failed (1): ValueError: no such thing"
    )
    script(tmp_path, "silent", "")
    assert "wrote no figures" in bench.run("silent", False, tmp_path).reason
    assert bench.run("absent", False, tmp_path).reason == (
        "python benchmarks/absent.py does not exist"
    )
    script(tmp_path, "asked", "import sys; sys.exit(0 if '--quick' in sys.argv else 7)")
    assert "wrote no figures" in bench.run("asked", True, tmp_path).reason
    assert "failed (7)" in bench.run("asked", False, tmp_path).reason


def test_all_scripts_run_although_one_fails_and_the_status_tells(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = bench.run
    monkeypatch.setattr(bench, "run", lambda name, quick: real(name, quick, tmp_path))
    out = tmp_path / "out"
    script(tmp_path, "first", "raise SystemExit('out of memory')")
    reports(tmp_path, "second", small=figure(0.4, ends=(0.3, math.nan)))
    assert bench.main(["--out", str(out)]) == 1
    stored = json.loads((out / "results.json").read_text(), parse_constant=pytest.fail)
    assert stored["small"]["value"] == 0.4
    assert (stored["fast"]["value"], stored["small"]["high"]) == (None, None)
    assert stored["_about"]["scripts"]["first"]["reason"].endswith("out of memory")
    # Mended and run alone: the other script's figure is kept, and all is well.
    reports(tmp_path, "first", fast=figure(2.5), told=figure(1.0))
    reports(tmp_path, "second", small=figure(0.1))
    assert bench.main(["--out", str(out), "--only", "first"]) == 0
    stored = json.loads((out / "results.json").read_text())
    assert (stored["fast"]["value"], stored["small"]["value"]) == (2.5, 0.4)
    assert "| `fast` | 2.500 | - | >= 2 | met |" in (out / "RESULTS.md").read_text()
    # A missed bar is no failure: it stays in the table.
    reports(tmp_path, "first", fast=figure(0.5, note="too slow"), told=figure(1.0))
    assert bench.main(["--out", str(out), "--only", "first"]) == 0
    assert "| missed | too slow |" in (out / "RESULTS.md").read_text()
    assert "[1/1] first: about" in capsys.readouterr().out


def test_a_quick_run_writes_nothing(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "HERE", tmp_path)
    found = {"first": {"fast": figure(3.0), "told": figure(1.0)}, "second": {"small": figure(0.1)}}
    monkeypatch.setattr(bench, "run", lambda name, _quick: bench.Outcome(name, found[name]))
    assert bench.main(["--quick"]) == 0
    assert list(tmp_path.iterdir()) == []
    assert "| `fast` | 3.000 |" in capsys.readouterr().out


def test_time_left_follows_the_last_run_and_the_pace_of_this_one(bench: Any) -> None:
    told = {"scripts": {"first": {"seconds": 10.0}, "second": {"seconds": 40.0}}}
    assert bench.remaining(["first", "second"], told, spent=0.0, done=0.0) == 50.0
    # The first took twice as long as the last time.
    assert bench.remaining(["second"], told, spent=20.0, done=10.0) == 80.0
    assert bench.expected("third", told) == bench.EXPECTED_SECONDS


def test_the_page_tells_bars_machine_and_what_failed(bench: Any) -> None:
    about = {
        "processor": "Some CPU",
        "cpu_count": 2,
        "machine": "x86_64",
        "python": "3.11.1",
        "packages": {"torch": "2.13.0"},
        "scripts": {
            "first": {
                "commit": "0123456789abcdef",
                "dirty": True,
                "day": "2026-01-02",
                "seconds": 3,
            }
        },
    }
    results = {
        "_about": about,
        "fast": figure(2.1, ends=(1.9, 2.3), command="python benchmarks/first.py"),
        "told": figure(123.4, note="a | b\nc", command="make demo"),
        "small": figure(0.9, command="python benchmarks/second.py"),
        "extra": figure(0.5, command="python benchmarks/second.py"),
    }
    text = bench.markdown(results)
    assert "Some CPU, 2 cores (x86_64); Python 3.11.1; torch 2.13.0." in text
    assert "1 figures met their bar; missed: `small`." in text
    # 1.9 to 2.3 holds the bar of 2: another run may decide otherwise.
    assert "| `fast` | 2.100 | 1.900 to 2.300 | >= 2 | met? |  |" in text
    assert "| `told` | 123 | - | - |  | a \\| b c |" in text
    assert "| `small` | 0.900 | - | <= 0.5 | missed | no reason is given |" in text
    assert "commit `0123456789` with uncommitted changes, 2026-01-02, 3 s" in text
    assert text.index("## first") < text.index("`fast`") < text.index("## second")
    assert text.index("`small`") < text.index("`extra`")
    assert "never run" in text


def test_an_exponent_may_exceed_its_power_by_the_slack_only(bench: Any) -> None:
    import bars

    bar = bars.exponent_bar("exponent_step_time_anchors")
    assert bar.met(1.0 + bars.SLACK) and not bar.met(1.01 + bars.SLACK)
    for name in ("exponent_step_time_colour", "step_time_anchors", "exponent_time", "fast"):
        assert bars.exponent_bar(name) is None


def test_work_done_twice_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from restart import counted

    log = [
        ("response", "computed", "a"),
        ("response", "computed", "b"),
        ("response", "stored", "a"),
        ("response", "computed", "b"),  # computed before a kill, but not stored
        ("response", "stored", "b"),
        ("feature", "computed", "a"),  # another stage: no repetition
        ("feature", "stored", "a"),
    ]
    assert counted(log) == (0, 1)
    assert counted([*log, ("feature", "computed", "a")]) == (1, 1)
    assert counted([]) == (0, 0)


def test_exponents_of_powers_are_their_powers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import numpy as np
    from scaling import exponent, time_exponent

    sizes = (2, 4, 16)
    assert exponent(sizes, np.array([3 * n**1.5 for n in sizes])) == pytest.approx(1.5)
    # A round that was disturbed as a whole changes no median of the others.
    seconds = np.array([[n**2.0] * 6 + [50.0 * n] for n in sizes])
    found = time_exponent(sizes, seconds, "n")
    assert found.value == pytest.approx(2.0)
    assert found.low <= 2.0 <= found.high + 1e-9


def test_the_demo_speedup_is_the_committed_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from start import RESULTS, demo_speedup

    lines = RESULTS.read_text().splitlines()
    names = lines[0].split(",")
    [row] = [dict(zip(names, line.split(","), strict=True)) for line in lines[1:] if
             line.split(",")[names.index("arm")] == "xpress"
             and line.split(",")[names.index("temperature")] == "0.0"]  # fmt: skip
    found = demo_speedup()
    assert (found.value, found.command) == (float(row["speedup"]), "make demo")
    assert f"{row['num_prompts']} prompts" in found.note
    folder = tmp_path / "experiments" / "demo" / "example"
    folder.mkdir(parents=True)
    (folder / "results.csv").write_text(lines[0] + "\n")
    with pytest.raises(ValueError, match="0 rows of arm=xpress at temperature 0"):
        demo_speedup(folder / "results.csv")


def test_the_cost_model_is_exact_where_rounds_cost_what_it_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import random

    import cost_model

    from xpress_exp.types import Round, SampleTrace

    def played(which: Any, prompt: int, surcharge: float) -> SampleTrace:
        """600 rounds: 0.5 ms a pass, 2 ms and 1 ms a token verified, 0.5 ms of the rest."""
        if isinstance(which, str):
            return SampleTrace("p", "d", (0,) * 101, (), 4, 1.0, 300.0, (3.0,) * 100, "length")
        draw = random.Random(f"{which.head} {which.passes} {which.block} {prompt}")
        draft, head, verify = 0.25 * which.block, 0.5 * which.passes, 3.0 + which.length
        rounds = []
        for _ in range(600):
            # The whole block is drawn, so that a shorter one accepts what the whole one would.
            hits = [draw.random() < 0.6 for _ in range(which.block - 1)] + [False]
            accepted = min(hits.index(False), which.length)
            rounds.append(
                Round(which.length, accepted, accepted + 1, which.passes, draft, head, verify)
            )
        count = 1 + sum(item.committed for item in rounds)
        spent = len(rounds) * (draft + head + verify + 0.5) * surcharge
        return SampleTrace("p", "d", (0,) * count, tuple(rounds), 4, 1.0, spent, (), "length")

    def measured(slow: Any = None) -> dict[Any, list[SampleTrace]]:
        works = [cost_model.PLAIN, *cost_model.CALIBRATION, *cost_model.TESTS, *cost_model.PROFILES]
        assert len(set(works)) == len(works)
        return {w: [played(w, p, 2.0 if w == slow else 1.0) for p in range(3)] for w in works}

    found = cost_model.told(measured())
    assert found["cost_model_error"].value < 1e-9
    assert found["cost_model_mean_error"].value <= found["cost_model_error"].value
    assert found["cost_model_choice_over_best"].value == 1.0
    assert len(capsys.readouterr().out.splitlines()) == 10 == len(cost_model.TESTS)
    # A test that takes twice as long is noticed: twice the rate is predicted.
    slow = cost_model.TESTS[4]
    off = cost_model.told(measured(slow))["cost_model_error"]
    assert off.value == pytest.approx(1.0)
    assert str(slow) in off.note
