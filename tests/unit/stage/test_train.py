"""What a training leaves behind beside its weights: W&B runs of its own, facts of its target."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from omegaconf import DictConfig

from xpress_exp.builders import build_target
from xpress_exp.export import read_folder, target_facts
from xpress_exp.run_dir import RunDir
from xpress_exp.schema import run_path
from xpress_exp.stage.prepare import prepare
from xpress_exp.stage.train import train


def test_two_trainings_in_one_process_are_two_runs_of_wandb(
    make_cfg: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """W&B keeps the open run of a process: a second logger would write into the first one's."""
    for name in ("WANDB_MODE", "WANDB_RUN_ID", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    names = []
    for arm in ("none", "markov"):
        cfg = make_cfg(f"arm={arm}", "optim.max_steps=1", "logger=wandb", "logger.mode=offline")
        prepare(cfg)
        train(cfg)
        run = RunDir(run_path(cfg))
        [folder] = (run.path / "wandb").glob("offline-run-*")
        # The run's name is its id: online it would be found again.
        [log] = folder.glob("*.wandb")
        assert log.name == f"run-{run.name}.wandb"
        assert folder.name.endswith(run.name)
        assert log.stat().st_size > 0
        names.append(run.name)
    assert len(set(names)) == 2


def test_a_run_tells_which_target_it_was_trained_for(make_cfg: Callable[..., DictConfig]) -> None:
    cfg = make_cfg("arm=none_released")
    train(cfg)
    found = read_folder(run_path(cfg)).target
    expected = target_facts(build_target(cfg), "tiny")
    assert found == expected
    assert found.probe is not None and found.chat_template_sha256 is not None
