"""A whole training set-up on a tiny float64 target: documents, model, objective, optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightning
import pytest
import torch

from xpress_exp.builders import DraftModel
from xpress_exp.objective import CoTrainObjective
from xpress_exp.optim import AdamWCosine
from xpress_exp.target import TinyTarget
from xpress_exp.train.module import CoTrainModule
from xpress_exp.types import TrainBatch

LEFT = [([5, 9, 4], [13, 6, 6, 8, 20]), ([31, 7], [30, 29, 12, 40])]
RIGHT = [([8], [9, 10, 11])]


@dataclass(frozen=True)
class Setup:
    """whole packs the documents of left and right, in that order, with the same anchors."""

    target: TinyTarget
    left: TrainBatch
    right: TrainBatch
    whole: TrainBatch
    make_module: Callable[..., CoTrainModule]


def objective() -> CoTrainObjective:
    weight = {"start": 0.6, "end": 0.2, "schedule": "linear"}
    return CoTrainObjective(0.1, 0.9, 4.0, weight, 0.3, 1, 2)


def optimizer(**changes: Any) -> AdamWCosine:
    values: dict[str, Any] = {
        "lr": 1e-3,
        "head_lr": 5e-3,
        "betas": [0.9, 0.95],
        "weight_decay": 0.01,
        "warmup_share": 0.25,
        "max_grad_norm": 0.5,
        "max_steps": 4,
        "min_lr_share": 0.1,
    }
    return AdamWCosine(**{**values, **changes})


@pytest.fixture(scope="session")
def setup(
    make_target: Callable[..., TinyTarget],
    make_model: Callable[..., DraftModel],
    pack: Callable[..., TrainBatch],
) -> Setup:
    target = make_target()

    def make_module(head: str = "xpress", randomize: float = 0.3, **optim: Any) -> CoTrainModule:
        model = make_model(target, head, randomize=randomize).train()
        return CoTrainModule(model, target, objective(), optimizer(**optim))

    return Setup(
        target,
        left=pack(target, LEFT, [3, 4, 6, 10, 12]),
        right=pack(target, RIGHT, [1, 2]),
        whole=pack(target, [*LEFT, *RIGHT], [3, 4, 6, 10, 12, 15, 16]),
        make_module=make_module,
    )


@pytest.fixture
def fit() -> Callable[..., Any]:
    """Run Lightning over the given optimizer steps and return the trainer."""

    def run(module: CoTrainModule, steps: list[list[TrainBatch]], **arguments: Any) -> Any:
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_steps=len(steps),
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            limit_val_batches=0,
            **arguments,
        )
        loader = torch.utils.data.DataLoader(steps, batch_size=None)  # type: ignore[arg-type]
        trainer.fit(module, loader)
        return trainer

    return run
