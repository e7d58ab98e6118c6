"""How a command line becomes stages: sharing of runs, failures, interruption, the report."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from xpress_exp import cli

Command = Callable[..., int]
Calls = Any  # conftest.Calls: what the recorded stages were asked to do


def of_arm(name: str, error: BaseException) -> Callable[[DictConfig], BaseException | None]:
    return lambda cfg: error if cfg.arm.name == name else None


def test_single_run_goes_through_its_stages(command: Command, calls: Calls, tmp_path: Path) -> None:
    assert command("head=markov", "stages=[prepare,train,eval,report]") == 0
    [run] = calls.trained
    assert run.startswith("markov-b8-s0-")
    assert calls.prepared == [run]
    assert calls.evaluated == [[(run, 6)]]
    assert calls.reported == [(1, "custom", {})]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [".hydra"]


def test_stages_choose(command: Command, calls: Calls) -> None:
    assert command("stages=[eval]") == 0
    assert calls.prepared == calls.trained == calls.reported == []
    assert len(calls.evaluated) == 1


def test_sweep_over_passes_shares_one_run(command: Command, calls: Calls) -> None:
    assert command("-m", "head=none,xpress", "solver.num_iterations=0,1,2,4") == 0
    assert len(calls.trained) == len(set(calls.trained)) == 2
    [points] = calls.evaluated
    none, xpress = calls.trained
    assert points == [(none, None), (xpress, 0), (xpress, 1), (xpress, 2), (xpress, 4)]
    assert calls.reported == [(5, "custom", {})]


def test_solvers_without_passes_are_decoded_once(command: Command, calls: Calls) -> None:
    assert command("-m", "solver=parallel,sequential", "solver.num_iterations=1,2") == 0
    assert [passes for _, passes in calls.evaluated[0]] == [None, None]


def test_experiment_carries_its_grid_and_can_be_narrowed(command: Command, calls: Calls) -> None:
    assert command("+experiment=demo", "optim.max_steps=3") == 0
    assert [run.split("-")[0] for run in calls.trained] == [
        "none_released",
        "none",
        "markov",
        "xpress",
    ]
    assert calls.reported[0][1] == "demo"
    calls.trained.clear()
    assert command("+experiment=demo", "optim.max_steps=3", "arm=markov") == 0
    assert [run.split("-")[0] for run in calls.trained] == ["markov"]


def test_released_drafter_is_never_trained(command: Command, calls: Calls) -> None:
    steps: list[int] = []
    calls.broken["train"] = lambda cfg: steps.append(cfg.optim.max_steps)
    assert command("-m", "arm=none_released,none", "optim.max_steps=9") == 0
    assert steps == [0, 9]


def test_each_job_alone_evaluates_itself(command: Command, calls: Calls) -> None:
    line = ("-m", "solver.num_iterations=1,2", "decode.side_by_side=false")
    assert command(*line) == 0
    assert len(calls.trained) == 1
    assert [[passes for _, passes in points] for points in calls.evaluated] == [[1], [2]]


def test_one_failed_job_leaves_the_others(
    command: Command, calls: Calls, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    calls.broken["train"] = of_arm("none", ValueError("data.max_length=1 is\ntoo short"))
    assert command("-m", "head=none,markov", "solver.num_iterations=1,2") == 1
    [run] = calls.trained
    assert run.startswith("markov")
    assert [name for name, _ in calls.evaluated[0]] == [run, run]
    [(num_points, _, failures)] = calls.reported
    assert num_points == 3
    [(failed, reason)] = failures.items()
    assert failed.startswith("none-")
    assert reason == "train: data.max_length=1 is too short"
    told = capsys.readouterr()
    # Points 1 and 2 share the failed run: it is tried once.
    assert told.err.splitlines() == [
        "error: [1/4 none] train: data.max_length=1 is too short "
        f"(traceback: runs/{failed}/failure.json)"
    ]
    content = json.loads((tmp_path / "runs" / failed / "failure.json").read_text())
    assert content["stage"] == "train"
    assert "ValueError" in content["traceback"]
    del calls.broken["train"]
    assert command("-m", "head=none,markov", "solver.num_iterations=1,2") == 0
    assert not (tmp_path / "runs" / failed / "failure.json").exists()


def test_unexpected_errors_show_their_traceback(
    command: Command, calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    calls.broken["train"] = lambda _cfg: ZeroDivisionError("by nought")
    assert command() == 1
    told = capsys.readouterr().err
    assert "Traceback" in told
    start, _, file = told.splitlines()[-1].rstrip(")").partition(" (traceback: ")
    assert start == "error: [1/1 xpress] train: ZeroDivisionError: by nought"
    assert "ZeroDivisionError: by nought" in json.loads(Path(file).read_text())["traceback"]
    assert calls.evaluated == calls.reported == []


def test_report_comes_even_when_everything_failed(command: Command, calls: Calls) -> None:
    calls.broken["prepare"] = lambda _cfg: ValueError("no data")
    assert command("-m", "head=none,markov") == 1
    assert calls.evaluated == []
    assert len(calls.reported[0][2]) == 2


def test_report_comes_when_the_evaluation_failed(
    command: Command, calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    calls.broken["eval"] = lambda _cfg: ValueError("no prompts")
    assert command("-m", "head=none,markov") == 1
    # No run is to blame: the report hears of no failure, and the reason is kept beside the runs.
    [(_, _, failures)] = calls.reported
    assert failures == {}
    kept = Path("runs/.hydra/custom-eval.failure.json")
    assert capsys.readouterr().err == f"error: [all] eval: no prompts (traceback: {kept})\n"
    content = json.loads(kept.read_text())
    assert (content["stage"], content["reason"]) == ("eval", "no prompts")
    assert "in note" in content["traceback"]
    calls.broken.clear()
    assert command("-m", "head=none,markov") == 0
    assert not kept.exists()


def test_a_failed_report_keeps_its_traceback(
    command: Command,
    calls: Calls,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_arguments: Any) -> None:
        raise RuntimeError("no ink")

    monkeypatch.setattr(cli, "_report", fail)
    assert command("-m", "head=none,markov") == 1
    kept = Path("runs/.hydra/custom-report.failure.json")
    assert capsys.readouterr().err.endswith(f"RuntimeError: no ink (traceback: {kept})\n")
    assert "in fail" in json.loads(kept.read_text())["traceback"]


def test_a_failure_that_cannot_be_kept_is_still_told(
    command: Command,
    calls: Calls,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_arguments: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(cli, "write_json", full)
    calls.broken["train"] = lambda _cfg: ValueError("too short")
    assert command("stages=[train]") == 1
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert told.splitlines()[-1] == "error: [1/1 xpress] train: too short"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"]
)
def test_a_signal_ends_the_sweep_at_once(
    number: signal.Signals, code: int, command: Command, calls: Calls
) -> None:
    # A shell starts background jobs with SIGINT ignored, and Python keeps that.
    at_interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.getsignal(signal.SIGTERM)

    def interrupted(cfg: DictConfig) -> None:
        if cfg.arm.name == "markov":
            os.kill(os.getpid(), number)

    calls.broken["train"] = interrupted
    assert command("-m", "head=none,markov,xpress") == code
    assert [run.split("-")[0] for run in calls.trained] == ["none"]
    assert calls.evaluated == calls.reported == []
    assert signal.getsignal(signal.SIGTERM) is before
    signal.signal(signal.SIGINT, at_interrupt)


def test_progress_is_told(
    command: Command, calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("-m", "head=none,markov", "stages=[train]") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" done")[0] for line in lines] == [
        "[1/2 none] train ...",
        "[1/2 none] train",
        "[2/2 markov] train ...",
        "[2/2 markov] train",
    ]
    assert len(calls.trained) == 2
