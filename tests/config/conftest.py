"""A command line run in this process, with stages that only write down that they were called."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
from omegaconf import DictConfig

from xpress_exp import cli
from xpress_exp.schema import decode_science, run_name


@dataclass
class Calls:
    """What the stages were asked to do; `broken` maps a stage to the error it raises."""

    prepared: list[str] = field(default_factory=list)
    trained: list[str] = field(default_factory=list)
    evaluated: list[list[tuple[str, Any]]] = field(default_factory=list)
    reported: list[tuple[int, str, dict[str, str]]] = field(default_factory=list)
    broken: dict[str, Callable[[DictConfig], BaseException | None]] = field(default_factory=dict)

    def note(self, stage: str, cfg: DictConfig) -> str:
        error = self.broken.get(stage, lambda _cfg: None)(cfg)
        if error is not None:
            raise error
        return run_name(cfg)

    def prepare(self, cfg: DictConfig) -> None:
        self.prepared.append(self.note("prepare", cfg))

    def train(self, cfg: DictConfig) -> None:
        self.trained.append(self.note("train", cfg))

    def evaluate(self, cfgs: list[DictConfig]) -> None:
        self.evaluated.append(
            [(self.note("eval", c), decode_science(c)["solver"]["num_iterations"]) for c in cfgs]
        )

    def report(self, cfgs: list[DictConfig], experiment: str, failures: dict[str, str]) -> None:
        self.reported.append((len(cfgs), experiment, failures))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    found = Calls()
    names = {"prepare": "prepare", "train": "train", "eval": "evaluate", "report": "report"}
    for stage, function in names.items():
        module = ModuleType(f"xpress_exp.stage.{stage}")
        setattr(module, function, getattr(found, function))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return found


@pytest.fixture
def command(calls: Calls, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Callable[..., int]:
    """Runs `python -m xpress_exp <arguments>` with recorded stages in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["xpress_exp", *arguments])
        return cli.main()

    return run
