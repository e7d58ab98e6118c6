"""AdamW with linear warm-up and cosine decay, drafter and head at their own learning rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR


@dataclass(frozen=True)
class AdamWCosine:
    """lr for the drafter, head_lr for the head; the last step runs at min_lr_share of them.

    warmup_share: share of max_steps (optimizer steps) with linearly growing rates.
    """

    lr: float
    head_lr: float
    betas: Sequence[float]
    weight_decay: float
    warmup_share: float
    max_grad_norm: float
    max_steps: int
    min_lr_share: float

    def factor(self, step: int) -> float:
        """Multiplier of the learning rates at optimizer step 0..max_steps-1."""
        # Rounded first: 0.07 * 100 is a little more than 7 in floating point.
        warmup = max(1, math.ceil(round(self.warmup_share * self.max_steps, 6)))
        if step < warmup:
            return (step + 1) / warmup
        done = min(1.0, (step - warmup) / max(1, self.max_steps - 1 - warmup))
        cosine = (1 + math.cos(math.pi * done)) / 2
        return self.min_lr_share + (1 - self.min_lr_share) * cosine

    def build(
        self, drafter: Iterable[nn.Parameter], head: Iterable[nn.Parameter]
    ) -> tuple[AdamW, LambdaLR]:
        """Optimizer and schedule; the schedule is stepped once per optimizer step."""
        groups = [
            {"params": list(drafter), "lr": self.lr, "name": "drafter"},
            {"params": list(head), "lr": self.head_lr, "name": "head"},
        ]
        optimizer = AdamW(
            [group for group in groups if group["params"]],
            betas=(self.betas[0], self.betas[1]),
            weight_decay=self.weight_decay,
        )
        return optimizer, LambdaLR(optimizer, self.factor)
