"""A run that was ended and started again is the run that was never ended: same weights and log."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
STEPS = 12
OVERRIDES = (
    "+experiment=tiny",
    "arm=xpress",
    f"optim.max_steps={STEPS}",
    "trainer.accumulate_grad_batches=2",
    "trainer.val_every_steps=5",
    "trainer.checkpoint_every_steps=4",
    "data.generation.max_new_tokens=12",
)
# With `kill_at` > 0 the process sends itself a signal in that optimizer step. Every step also
# leaves a record of the documents and anchors that it saw.
SCRIPT = """
import json, os, signal, sys
from pathlib import Path
from hydra import compose, initialize_config_dir
from xpress_exp.schema import run_path, settle
from xpress_exp.stage.prepare import prepare
from xpress_exp.stage.train import train
from xpress_exp.train.module import CoTrainModule

conf, seen, kill_at, sent, *overrides = sys.argv[1:]
with initialize_config_dir(conf, version_base=None):
    cfg = settle(compose("config", overrides=overrides))
original = CoTrainModule.training_step

def training_step(self, batches, batch_idx):
    original(self, batches, batch_idx)
    inputs = [[b.step, b.input_ids.tolist(), b.anchors.tolist()] for b in batches]
    with Path(seen).open("a") as file:
        file.write(json.dumps([self.global_step, inputs]) + "\\n")
    if self.global_step == int(kill_at):
        os.kill(os.getpid(), signal.Signals[sent])

CoTrainModule.training_step = training_step
prepare(cfg)
train(cfg)
print(run_path(cfg))
"""


class Runs:
    """One cache for all, a folder of runs each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, name: str, kill_at: int = 0, sent: str = "SIGTERM") -> tuple[int, Path, str]:
        """(exit status, run directory, error output)."""
        paths = [f"paths.cache={self.folder / 'cache'}", f"paths.runs={self.folder / name}"]
        seen = self.folder / f"{name}.seen"
        arguments = [str(ROOT / "conf"), str(seen), str(kill_at), sent, *OVERRIDES, *paths]
        source = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": source},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        (run,) = [path for path in (self.folder / name).iterdir() if path.is_dir()]
        return done.returncode, run, done.stderr

    def seen(self, name: str) -> list[Any]:
        text = (self.folder / f"{name}.seen").read_text()
        return [json.loads(line) for line in text.splitlines()]


def metrics(run: Path) -> list[Any]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("resume"))


@pytest.fixture(scope="module")
def straight(runs: Runs) -> Path:
    """The run that nobody disturbs."""
    status, run, errors = runs.start("straight")
    assert status == 0, errors
    steps = [(entry["kind"], entry["step"]) for entry in metrics(run)]
    assert [step for kind, step in steps if kind == "train"] == list(range(1, STEPS + 1))
    assert [step for kind, step in steps if kind == "validation"] == [5, 10, 12]
    return run


def assert_same_run(run: Path, straight: Path) -> None:
    assert run.name == straight.name
    weights = [(path / "model.safetensors").read_bytes() for path in (run, straight)]
    assert weights[0] == weights[1]
    assert metrics(run) == metrics(straight)
    marks = [json.loads((path / "train.done.json").read_text()) for path in (run, straight)]
    assert marks[0]["model_sha256"] == marks[1]["model_sha256"]


def test_sigterm_and_rerun(runs: Runs, straight: Path) -> None:
    status, run, errors = runs.start("terminated", kill_at=6)
    assert status == 143, errors
    assert not (run / "model.safetensors").exists() and not (run / "train.done.json").exists()
    # The step that was running is finished and saved, not lost.
    assert [entry["step"] for entry in metrics(run) if entry["kind"] == "train"] == [*range(1, 7)]
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["last.ckpt"]

    status, run, errors = runs.start("terminated")
    assert status == 0, errors
    assert_same_run(run, straight)
    # Documents and anchors of every step, none twice, none left out.
    assert runs.seen("terminated") == runs.seen("straight")
    assert [record[0] for record in runs.seen("terminated")] == list(range(1, STEPS + 1))


def test_sigkill_and_rerun(runs: Runs, straight: Path) -> None:
    status, run, _ = runs.start("killed", kill_at=6, sent="SIGKILL")
    assert status == -9
    assert [entry["step"] for entry in metrics(run)][-1] == 5
    status, run, errors = runs.start("killed")
    assert status == 0, errors
    assert_same_run(run, straight)
    # Back to the checkpoint of step 4; the repeated steps see what they saw before.
    expected = runs.seen("straight")
    assert runs.seen("killed") == [*expected[:6], *expected[4:]]


def test_a_crash_after_the_last_step_repeats_none(runs: Runs, straight: Path) -> None:
    shutil.copytree(straight.parent, runs.folder / "late")
    shutil.copy(runs.folder / "straight.seen", runs.folder / "late.seen")
    run = runs.folder / "late" / straight.name
    (run / "train.done.json").unlink()
    (run / "model.safetensors").unlink()
    status, run, errors = runs.start("late")
    assert status == 0, errors
    assert_same_run(run, straight)
    # A closed stage is left alone.
    before = (run / "train.done.json").stat().st_mtime_ns
    assert runs.start("late")[0] == 0
    assert (run / "train.done.json").stat().st_mtime_ns == before
    assert runs.seen("late") == runs.seen("straight")
