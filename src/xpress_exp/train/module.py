"""A thin LightningModule: batch -> blocks -> objective -> one optimizer step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import lightning
import torch
from torch import Tensor

from xpress_exp.builders import DraftModel
from xpress_exp.data.anchor import block_targets
from xpress_exp.data.capture import capture_batch
from xpress_exp.drafter import block_groups
from xpress_exp.objective import CoTrainObjective
from xpress_exp.optim import AdamWCosine
from xpress_exp.target import TargetModel
from xpress_exp.types import BlockTargets, Losses, TrainBatch, nan_free_mean


class CoTrainModule(lightning.LightningModule):
    """Trains `model`; the target is a plain object, so it is in no checkpoint and no optimizer.

    A training batch is the list of all micro-batches of one optimizer step. The loss denominator is
    pooled over all of them (and all ranks) before the first backward pass.
    """

    def __init__(
        self,
        model: DraftModel,
        target: TargetModel,
        objective: CoTrainObjective,
        optimizer: AdamWCosine,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.target = target
        self.objective = objective
        self.optimizer_settings = optimizer
        self.step_metrics: dict[str, float] = {}

    def configure_optimizers(self) -> Any:
        optimizer, schedule = self.optimizer_settings.build(
            self.model.drafter.parameters(), self.model.head.parameters()
        )
        return [optimizer], [schedule]

    @property
    def progress(self) -> float:
        """0 at the first optimizer step, 1 at the last."""
        return self.global_step / max(1, self.optimizer_settings.max_steps - 1)

    def training_step(self, batches: Sequence[TrainBatch], _batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        schedule: Any = self.lr_schedulers()
        full = [self.with_features(batch) for batch in batches]
        targets = [self.block_targets(batch) for batch in full]
        denominator = self._pooled(torch.stack([t.weights.sum() for t in targets]).sum())
        optimizer.zero_grad()
        results = []
        for batch, target in zip(full, targets, strict=True):
            losses = self.block_losses(batch, target, denominator)
            # DDP averages gradients over ranks; the pooled denominator wants their sum.
            self.manual_backward(losses.total * self.trainer.world_size)
            results.append(self._over_ranks(losses))
        norm = self._clip(optimizer)
        if not math.isfinite(norm):
            raise ValueError(
                f"the gradient of optimizer step {self.global_step} is not finite; lower optim.lr "
                "or optim.head_lr and delete the run directory"
            )
        rates = {f"lr_{group['name']}": group["lr"] for group in optimizer.param_groups}
        self.step_metrics = {
            **self.summarize(results, denominator),
            "grad_norm": norm,
            "w_anchor": self.objective.w_anchor(self.progress),
            **rates,
        }
        optimizer.step()
        schedule.step()

    def _pooled(self, value: Tensor) -> Tensor:
        """Sum over ranks; never zero, so that a step without any label is a step of zero loss."""
        return self._summed(value).clamp(min=1e-6)

    def _over_ranks(self, losses: Losses) -> Losses:
        """Sums and counts of all ranks, for the log; without gradient."""
        return Losses(
            total=self._summed(losses.total.detach()),
            sums={name: self._summed(value) for name, value in losses.sums.items()},
            counts={name: self._summed(value) for name, value in losses.counts.items()},
        )

    def _summed(self, value: Tensor) -> Tensor:
        if self.trainer.world_size == 1:
            return value
        return self.trainer.strategy.reduce(value.clone(), reduce_op="sum")  # type: ignore

    def _clip(self, optimizer: Any) -> float:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        limit = self.optimizer_settings.max_grad_norm
        return float(torch.nn.utils.clip_grad_norm_(parameters, limit))

    def with_features(self, batch: TrainBatch) -> TrainBatch:
        """The batch with features and last_hidden, computed now when they are not cached."""
        if batch.features is not None:
            return batch
        features, last_hidden = capture_batch(batch, self.target)
        return replace(batch, features=features, last_hidden=last_hidden)

    def block_targets(self, batch: TrainBatch) -> BlockTargets:
        """Labels, weights and previous tokens of the batch's blocks."""
        return block_targets(
            batch,
            self.model.slots,
            self.objective.decay_gamma,
            self.model.head.anchor_prev,
            self.model.vocab_index,
        )

    def block_losses(self, batch: TrainBatch, targets: BlockTargets, denominator: Tensor) -> Losses:
        """Forward pass and objective of one micro-batch that has features."""
        assert batch.features is not None
        mask = block_groups(batch.anchors, batch.document_ids, self.model.slots.block_size)
        hidden = self.model.drafter(
            batch.features,
            batch.position_ids,
            batch.input_ids[batch.anchors],
            batch.position_ids[batch.anchors],
            mask,
        )
        return self.objective(
            hidden,
            self.model.head,
            self.model.lm_head,
            self.model.vocab_ids,
            targets,
            self.model.slots,
            self.progress,
            denominator,
        )

    @staticmethod
    def summarize(results: Sequence[Losses], denominator: Tensor) -> dict[str, float]:
        """Means over the micro-batches: loss, loss terms, acceptance and accuracy per position."""
        sums = {k: torch.stack([r.sums[k] for r in results]).sum(0) for k in results[0].sums}
        slots = torch.stack([r.counts["slot_count"] for r in results]).sum(0)
        total = torch.stack([result.total.detach() for result in results]).sum()
        metrics = {"loss": float(total)}
        for name, value in sums.items():
            if value.ndim == 0:
                metrics[name] = float(value / denominator)
                continue
            for slot, (part, count) in enumerate(
                zip(value.tolist(), slots.tolist(), strict=True), start=1
            ):
                metrics[f"{name}_{slot}"] = nan_free_mean(part, count)
        return metrics
