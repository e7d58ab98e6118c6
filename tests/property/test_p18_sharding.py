"""P18: a training step does not depend on how its anchors are spread over 1, 2 or 4 ranks."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from xpress_exp.builders import DraftModel
from xpress_exp.objective import CoTrainObjective
from xpress_exp.optim import AdamWCosine
from xpress_exp.target import TinyTarget
from xpress_exp.train.module import CoTrainModule
from xpress_exp.types import TrainBatch

DOCUMENTS = [([5, 9, 4], [13, 6, 6, 8, 20]), ([31, 7], [30, 29, 12, 40]), ([8], [9, 10, 11])]
# The block of the last anchor has fewer labels: ranks differ in anchors and in weight.
SHARDS = {
    1: [[3, 4, 6, 10, 12, 14, 15]],
    2: [[3, 4, 6, 10, 12], [14, 15]],
    4: [[3], [4, 6, 10], [15], [12, 14]],
}


class Ranks:
    """Collectives between threads, each of which plays one rank."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=60)
        self.values: list[Any] = [None] * size

    def sum(self, rank: int, value: Tensor) -> Tensor:
        self.values[rank] = value.detach().clone()
        self.barrier.wait()
        total = torch.stack(self.values).sum(0)
        self.barrier.wait()
        return total


def as_rank(module: CoTrainModule, ranks: Ranks, rank: int) -> CoTrainModule:
    """The module with a trainer that does what Lightning's does under DDP: reduce over ranks, and
    average every gradient over them after each backward pass."""
    (optimizer,), (schedule,) = module.configure_optimizers()

    def backward(loss: Tensor) -> None:
        parameters = list(module.model.parameters())
        for parameter, gradient in zip(
            parameters, torch.autograd.grad(loss, parameters), strict=True
        ):
            mean = ranks.sum(rank, gradient) / ranks.size
            parameter.grad = mean if parameter.grad is None else parameter.grad + mean

    def reduce(value: Tensor, reduce_op: str) -> Tensor:
        assert reduce_op == "sum"
        return ranks.sum(rank, value)

    fake: Any = module
    fake.optimizers, fake.lr_schedulers = lambda: optimizer, lambda: schedule
    fake.manual_backward = backward
    fake._trainer = SimpleNamespace(
        world_size=ranks.size, strategy=SimpleNamespace(reduce=reduce), global_step=0
    )
    return module


def step(module: CoTrainModule, batch: TrainBatch, anchors: list[list[int]]) -> list[CoTrainModule]:
    """One training step on each rank; returns the ranks' modules afterwards."""
    ranks = Ranks(len(anchors))
    copies = [as_rank(copy.deepcopy(module), ranks, rank) for rank in range(ranks.size)]
    with ThreadPoolExecutor(ranks.size) as pool:
        parts = [replace(batch, anchors=torch.tensor(own)) for own in anchors]
        tasks = [
            pool.submit(copied.training_step, [part], 0)
            for copied, part in zip(copies, parts, strict=True)
        ]
        for task in tasks:
            task.result()
    return copies


@pytest.mark.property("P18")
@pytest.mark.parametrize("head", ["none", "gru", "xpress"])
@pytest.mark.parametrize("size", [2, 4])
def test_p18_sharding_anchors_over_ranks_changes_nothing(
    make_target: Callable[..., TinyTarget],
    make_model: Callable[..., DraftModel],
    pack: Callable[..., TrainBatch],
    head: str,
    size: int,
) -> None:
    """Loss, logged sums, gradient norm and weights after the step; sharding differs in the order
    of float32 sums only."""
    target = make_target()
    weight = {"start": 0.6, "end": 0.2, "schedule": "linear"}
    objective = CoTrainObjective(0.1, 0.9, 4.0, weight, 0.3, 1, 2)
    optimizer = AdamWCosine(1e-3, 5e-3, (0.9, 0.95), 0.0, 0.25, 0.5, 4, 0.1)
    model = make_model(target, head, randomize=0.3).train()
    module = CoTrainModule(model, target, objective, optimizer)
    batch = pack(target, DOCUMENTS, SHARDS[1][0])
    (whole,) = step(module, batch, SHARDS[1])
    counts = [len(own) for own in SHARDS[size]]
    assert sum(counts) == len(SHARDS[1][0]) and len(set(counts)) > 1
    for sharded in step(module, batch, SHARDS[size]):
        assert sharded.step_metrics == pytest.approx(whole.step_metrics, rel=1e-6)
        for mine, theirs in zip(sharded.parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)
    moved = zip(whole.parameters(), module.parameters(), strict=True)
    assert any(not torch.equal(mine, before) for mine, before in moved)
