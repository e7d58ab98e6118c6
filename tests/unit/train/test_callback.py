"""Metrics survive a kill, checkpoints are whole, validation leaves no trace in training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from xpress_exp.data.document import Document
from xpress_exp.run_dir import RunDir
from xpress_exp.solver import SequentialSolver
from xpress_exp.train.callback import MetricsFile, ResumeCheckpoint, StepLog, Validation


def trainer_at(step: int, **more: Any) -> Any:
    values = {"is_global_zero": True, "loggers": [], "received_sigterm": False, **more}
    return SimpleNamespace(global_step=step, **values)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_metrics_of_repeated_steps_are_dropped(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.on_train_start(trainer_at(0), None)
    for step in (1, 2, 3):
        file.write(step, "train", {"loss": step / 2, "hit_4": float("nan")})
    file.write(2, "validation", {"tau": 1.5})
    with file.path.open("a") as stream:
        stream.write('{"step": 4, "kind": "tr')  # killed while writing
    file.on_train_start(trainer_at(2), None)
    kept = lines(file.path)
    assert [(line["step"], line["kind"]) for line in kept] == [
        (1, "train"),
        (2, "train"),
        (2, "validation"),
    ]
    assert kept[0] == {"step": 1, "kind": "train", "loss": 0.5, "hit_4": None}
    file.write(3, "train", {"loss": 9.0})
    assert lines(file.path)[-1]["loss"] == 9.0
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_only_the_first_rank_touches_the_metrics(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.write(5, "train", {"loss": 1.0})
    file.on_train_start(trainer_at(0, is_global_zero=False), None)
    assert len(lines(file.path)) == 1


class Saver:
    """Stands for a trainer: writes its step, or fails half way."""

    def __init__(self, step: int, sigterm: bool = False, fails: bool = False) -> None:
        self.global_step, self.received_sigterm, self.fails = step, sigterm, fails
        self.is_global_zero = True

    def save_checkpoint(self, path: Path) -> None:
        path.write_text(f"step {self.global_step}")
        if self.fails:
            raise OSError("disk full")


def test_checkpoint_when_due_or_terminated(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    callback: Any = ResumeCheckpoint(run, every_steps=4)
    for step in (1, 2, 3):
        callback.on_train_batch_end(Saver(step))
    assert not run.last_checkpoint.exists()
    callback.on_train_batch_end(Saver(4))
    callback.on_train_batch_end(Saver(5))
    assert run.last_checkpoint.read_text() == "step 4"
    callback.on_train_batch_end(Saver(6, sigterm=True))
    assert run.last_checkpoint.read_text() == "step 6"


def test_a_failed_save_keeps_the_old_checkpoint(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    callback: Any = ResumeCheckpoint(run, every_steps=1)
    callback.on_train_batch_end(Saver(1))
    with pytest.raises(OSError, match="disk full"):
        callback.on_train_batch_end(Saver(2, fails=True))
    assert run.last_checkpoint.read_text() == "step 1"
    assert [path.name for path in run.checkpoint_dir.iterdir()] == ["last.ckpt"]


def validation(setup: Any, tmp_path: Path, every_steps: int = 2) -> Validation:
    document = Document(setup.right.input_ids, setup.right.loss_mask)
    file = MetricsFile(tmp_path / "metrics.jsonl")
    batches = [setup.left, setup.right]
    return Validation(file, batches, [document] * 2, SequentialSolver(), every_steps, 9)


def test_validation_measures_the_whole_set(setup: Any, tmp_path: Path) -> None:
    module = setup.make_module("xpress")
    callback = validation(setup, tmp_path)
    module.optimizer_settings = SimpleNamespace(max_steps=4)
    callback.on_train_batch_end(trainer_at(2), module)
    callback.on_train_batch_end(trainer_at(3), module)
    callback.on_train_batch_end(trainer_at(4), module)
    found = lines(tmp_path / "metrics.jsonl")
    assert [(line["step"], line["kind"]) for line in found] == [
        (2, "validation"),
        (4, "validation"),
    ]
    with torch.no_grad():
        targets = module.block_targets(setup.whole)
        denominator = targets.weights.sum()
        whole = module.block_losses(setup.whole, targets, denominator)
    assert found[0]["loss"] == pytest.approx(float(whole.total))
    assert found[0]["refined_ce"] == pytest.approx(float(whole.sums["refined_ce"] / denominator))
    assert found[0]["tau"] >= 1.0


def test_validation_happens_after_the_last_step(setup: Any, tmp_path: Path) -> None:
    module = setup.make_module("none")
    module.optimizer_settings = SimpleNamespace(max_steps=3)
    validation(setup, tmp_path).on_train_batch_end(trainer_at(3), module)
    assert len(lines(tmp_path / "metrics.jsonl")) == 1


def test_validation_changes_no_training(
    setup: Any, fit: Callable[..., Any], tmp_path: Path
) -> None:
    results = []
    for callbacks in ([], [validation(setup, tmp_path, every_steps=1)]):
        module = setup.make_module("xpress")
        torch.manual_seed(0)
        fit(module, [[setup.left]] * 3, callbacks=callbacks)
        assert module.model.training
        results.append((module.model.state_dict(), torch.get_rng_state()))
    assert all(torch.equal(results[0][0][k], v) for k, v in results[1][0].items())
    assert torch.equal(results[0][1], results[1][1])


def test_step_log_writes_every_step(setup: Any, fit: Callable[..., Any], tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    module = setup.make_module("markov")
    fit(module, [[setup.left], [setup.right]], callbacks=[file, StepLog(file, 2, "tiny")])
    found = lines(file.path)
    assert [(line["step"], line["kind"]) for line in found] == [(1, "train"), (2, "train")]
    assert found[-1]["loss"] == module.step_metrics["loss"]
    expected = {"loss", "base_ce", "refined_l1", "consistency_loss", "refined_accept_1"}
    assert expected | {"grad_norm", "w_anchor", "lr_drafter", "lr_head"} <= set(found[0])
