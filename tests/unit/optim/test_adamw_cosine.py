"""Learning rates by formula, and who gets them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from xpress_exp.optim import AdamWCosine


def settings(**changes: Any) -> AdamWCosine:
    values: dict[str, Any] = {
        "lr": 6e-4,
        "head_lr": 2e-3,
        "betas": [0.9, 0.95],
        "weight_decay": 0.01,
        "warmup_share": 0.04,
        "max_grad_norm": 1.0,
        "max_steps": 100,
        "min_lr_share": 0.1,
    }
    return AdamWCosine(**{**values, **changes})


def test_warm_up_and_cosine_by_formula() -> None:
    optim = settings()
    assert [optim.factor(step) for step in range(4)] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert optim.factor(4) == pytest.approx(1.0)
    for step in range(4, 100):
        done = (step - 4) / 95
        expected = 0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2
        assert optim.factor(step) == pytest.approx(expected)
    assert optim.factor(99) == pytest.approx(0.1)  # the last step


def test_cosine_to_zero_and_no_warm_up() -> None:
    optim = settings(min_lr_share=0.0, warmup_share=0.0, max_steps=5)
    cosine = [(1 + math.cos(math.pi * (step - 1) / 3)) / 2 for step in range(1, 5)]
    assert [optim.factor(step) for step in range(5)] == pytest.approx([1.0, *cosine])
    for max_steps in (1, 2):
        assert settings(max_steps=max_steps).factor(0) == 1.0


def test_groups_follow_the_schedule_step_by_step() -> None:
    torch.manual_seed(0)
    drafter, head = nn.Linear(3, 2), nn.Linear(2, 2)
    optim = settings(max_steps=12, warmup_share=0.25)
    optimizer, schedule = optim.build(drafter.parameters(), head.parameters())
    for step in range(12):
        rates = {group["name"]: group["lr"] for group in optimizer.param_groups}
        factor = optim.factor(step)
        assert rates == pytest.approx({"drafter": 6e-4 * factor, "head": 2e-3 * factor})
        optimizer.step()
        schedule.step()
    for group in optimizer.param_groups:
        assert group["betas"] == (0.9, 0.95) and group["weight_decay"] == 0.01


def test_a_headless_model_has_one_group() -> None:
    optimizer, _ = settings().build(nn.Linear(3, 2).parameters(), nn.Identity().parameters())
    assert [group["name"] for group in optimizer.param_groups] == ["drafter"]


def test_a_restored_schedule_goes_on_where_it_stopped() -> None:
    weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    straight = settings(max_steps=9).build(weights[:1], weights[1:])
    for _ in range(4):
        straight[0].step()
        straight[1].step()
    resumed = settings(max_steps=9).build(weights[:1], weights[1:])
    resumed[0].load_state_dict(straight[0].state_dict())
    resumed[1].load_state_dict(straight[1].state_dict())
    for optimizer, schedule in (straight, resumed):
        optimizer.step()
        schedule.step()
    rates = [[group["lr"] for group in pair[0].param_groups] for pair in (straight, resumed)]
    assert rates[0] == rates[1]
