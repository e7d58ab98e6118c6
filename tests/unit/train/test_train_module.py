"""CoTrainModule on Lightning against a plain PyTorch loop."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from xpress_exp.data.anchor import block_targets
from xpress_exp.drafter import block_mask
from xpress_exp.train.module import CoTrainModule
from xpress_exp.types import Losses, TrainBatch

# Weights and their sums are float32, so that sums in another order differ from the 7th digit on.
CLOSE: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-7}


def plain_loss(module: CoTrainModule, batch: TrainBatch, progress: float) -> Tensor:
    """Weighted mean of eq. 15 over one batch, from the pieces."""
    model = module.model
    targets = block_targets(batch, model.slots, 4.0, model.head.anchor_prev)
    hidden = model.drafter(
        batch.features,
        batch.position_ids,
        batch.input_ids[batch.anchors],
        batch.position_ids[batch.anchors],
        block_mask(batch.anchors, batch.document_ids, model.slots.block_size),
    )
    arguments = (model.lm_head, None, targets, model.slots, progress, targets.weights.sum())
    return module.objective(hidden, model.head, *arguments).total


def plain_training(module: CoTrainModule, batches: list[TrainBatch]) -> list[dict[str, float]]:
    """AdamW by hand: one batch per step, warm-up over one step, cosine over the other three."""
    groups = [
        {"params": list(module.model.drafter.parameters()), "lr": 1e-3},
        {"params": list(module.model.head.parameters()), "lr": 5e-3},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.01)
    log = []
    for step, batch in enumerate(batches):
        done = max(0, step - 1) / 2
        factor = 0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2
        optimizer.param_groups[0]["lr"] = 1e-3 * factor
        optimizer.param_groups[1]["lr"] = 5e-3 * factor
        optimizer.zero_grad()
        loss = plain_loss(module, batch, progress=step / 3)
        loss.backward()
        gradients = [p.grad for p in module.model.parameters() if p.grad is not None]
        norm = torch.stack([gradient.pow(2).sum() for gradient in gradients]).sum().sqrt()
        for gradient in gradients:
            gradient.mul_(min(1.0, 0.5 / (norm.item() + 1e-6)))
        optimizer.step()
        log.append({"loss": loss.item(), "grad_norm": norm.item(), "lr_head": 5e-3 * factor})
    return log


@pytest.mark.parametrize("head", ["none", "xpress", "gru"])
def test_training_equals_a_plain_loop(setup: Any, fit: Callable[..., Any], head: str) -> None:
    """Two micro-batches of unequal size a step on one side, one packed batch on the other."""
    module = setup.make_module(head)
    reference = copy.deepcopy(module)
    log = []

    class Recorded(CoTrainModule):
        def training_step(self, batches: Any, batch_idx: int) -> None:
            super().training_step(batches, batch_idx)
            log.append(self.step_metrics)

    module.__class__ = Recorded
    trainer = fit(module, [[setup.left, setup.right]] * 4)
    expected = plain_training(reference, [setup.whole] * 4)
    assert trainer.global_step == 4
    for found, wanted in zip(log, expected, strict=True):
        keys = ["loss", "grad_norm"] + ["lr_head"] * (head != "none")
        assert {k: found[k] for k in keys} == pytest.approx({k: wanted[k] for k in keys}, rel=1e-6)
    assert [entry["w_anchor"] for entry in log] == pytest.approx([0.6, 1.4 / 3, 1 / 3, 0.2])
    for (name, mine), theirs in zip(
        module.model.named_parameters(), reference.model.parameters(), strict=True
    ):
        torch.testing.assert_close(mine, theirs, **CLOSE, msg=lambda m, n=name: f"{n}: {m}")


def test_a_zero_weight_step_is_a_step_of_zero_loss(setup: Any, fit: Callable[..., Any]) -> None:
    silent = replace(setup.left, loss_mask=torch.zeros_like(setup.left.loss_mask))
    module = setup.make_module("xpress", weight_decay=0.0)
    before = copy.deepcopy(module.model.state_dict())
    fit(module, [[silent]])
    assert module.step_metrics["loss"] == 0.0 and module.step_metrics["grad_norm"] == 0.0
    assert math.isnan(module.step_metrics["base_accept_1"])
    assert all(torch.equal(before[k], v) for k, v in module.model.state_dict().items())


def test_a_gradient_that_is_not_finite_stops_the_training(
    setup: Any, fit: Callable[..., Any]
) -> None:
    module = setup.make_module("xpress")
    with torch.no_grad():
        module.model.drafter.norm.weight[0] = float("inf")
    with pytest.raises(ValueError, match=r"step 0 is not finite; lower optim\.lr"):
        fit(module, [[setup.left]])


@pytest.mark.property("P11e")
@pytest.mark.parametrize("head", ["none", "markov", "gru", "xpress"])
def test_frozen_parts_are_in_no_optimizer_and_no_checkpoint(setup: Any, head: str) -> None:
    module = setup.make_module(head)
    (optimizer,), _ = module.configure_optimizers()
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert (
        trained
        == {id(p) for p in module.model.parameters()}
        == {id(p) for p in module.parameters()}
    )
    frozen = [setup.target.embedding, setup.target.lm_head, *setup.target._model.parameters()]
    addresses = {tensor.data_ptr() for tensor in frozen}
    assert not addresses & {p.data_ptr() for p in module.parameters()}
    assert not addresses & {t.data_ptr() for t in module.state_dict().values()}
    saved = {name.removeprefix("model.") for name in module.state_dict()}
    assert saved == {name for name, _ in module.model.named_parameters()}


@pytest.mark.property("P11e")
def test_target_stays_frozen_in_training(setup: Any, fit: Callable[..., Any]) -> None:
    before = copy.deepcopy(setup.target._model.state_dict())
    online = replace(setup.left, features=None, last_hidden=None)
    module = setup.make_module("markov")
    fit(module, [[online], [online]])
    assert module.model.training and not setup.target._model.training
    assert all(torch.equal(before[k], v) for k, v in setup.target._model.state_dict().items())
    assert not any(p.requires_grad or p.grad is not None for p in setup.target._model.parameters())


def test_online_features_equal_cached_ones(setup: Any) -> None:
    module = setup.make_module()
    online = module.with_features(replace(setup.whole, features=None, last_hidden=None))
    torch.testing.assert_close(online.features, setup.whole.features, **CLOSE)
    torch.testing.assert_close(online.last_hidden, setup.whole.last_hidden, **CLOSE)
    assert module.with_features(setup.whole) is setup.whole


def test_summary_is_a_mean_over_labels() -> None:
    parts = [
        Losses(torch.tensor(0.5), {"ce": torch.tensor(3.0), "hit": torch.tensor([2.0, 0.0])},
               {"slot_count": torch.tensor([4.0, 0.0])}),
        Losses(torch.tensor(0.25), {"ce": torch.tensor(1.0), "hit": torch.tensor([1.0, 0.0])},
               {"slot_count": torch.tensor([2.0, 0.0])}),
    ]  # fmt: skip
    found = CoTrainModule.summarize(parts, torch.tensor(8.0))
    assert math.isnan(found.pop("hit_2"))
    assert found == {"loss": 0.75, "ce": 0.5, "hit_1": 0.5}
