"""Weights that change over training, in optimizer steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

SCHEDULES = ("linear", "cosine", "constant")


@dataclass(frozen=True)
class WeightSchedule:
    """A loss weight that moves from `start` to `end`.

    schedule: 'linear' (the paper's annealing), 'cosine', or 'constant' (always `start`). Raises
    ValueError for another name.
    """

    start: float
    end: float
    schedule: str

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(
                f"objective.w_anchor.schedule={self.schedule!r} is unknown; use one of {SCHEDULES}"
            )

    def __call__(self, progress: float) -> float:
        """Weight at progress 0 (first optimizer step) .. 1 (last optimizer step)."""
        if self.schedule == "constant":
            return self.start
        done = min(max(progress, 0.0), 1.0)
        if self.schedule == "cosine":
            done = (1 - math.cos(math.pi * done)) / 2
        return self.start + (self.end - self.start) * done
