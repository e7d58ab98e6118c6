"""Configurations of the tiny experiment, and finished runs of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from xpress_exp.builders import DraftModel, build_model, build_target, save_model
from xpress_exp.run_dir import RunDir
from xpress_exp.schema import run_path, science, settle

CONF = Path(__file__).parents[2] / "conf"


@pytest.fixture
def make_cfg(tmp_path: Path) -> Callable[..., DictConfig]:
    """The tiny experiment with further overrides; runs and cache below tmp_path."""

    def make(*overrides: str) -> DictConfig:
        paths = [f"paths.runs={tmp_path / 'runs'}", f"paths.cache={tmp_path / 'cache'}"]
        with initialize_config_dir(str(CONF), version_base=None):
            return settle(compose("config", overrides=["+experiment=tiny", *paths, *overrides]))

    return make


@pytest.fixture
def trained() -> Callable[[DictConfig], tuple[RunDir, DraftModel]]:
    """A run as training leaves it, its weights noise."""

    def make(cfg: DictConfig) -> tuple[RunDir, Any]:
        model = build_model(cfg, build_target(cfg))
        torch.manual_seed(9)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.1)
        run = RunDir(run_path(cfg))
        run.claim(json.loads(json.dumps(science(cfg))))
        run.mark_done("train", {"model_sha256": save_model(run, model)})
        return run, model

    return make
