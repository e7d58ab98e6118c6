"""Cost of a round, and the tau at which drafting pays for itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xpress_exp.metric.record import EvalRecord
from xpress_exp.types import nan_free_mean


@dataclass(frozen=True)
class Cost:
    """Mean milliseconds per round by part, and per token of the baseline; nan without data.

    break_even_tau = (draft + head + verify) / step: an arm beats the baseline where tau is above.
    """

    draft_ms: float
    head_ms: float
    verify_ms: float
    step_ms: float
    break_even_tau: float


def cost(records: Sequence[EvalRecord]) -> Cost:
    """Means over all rounds and all baseline steps of the records."""
    rounds = [item for record in records for item in record.arm.rounds]
    steps = [step for record in records for step in record.ar.step_ms]
    draft = nan_free_mean(sum(item.draft_ms for item in rounds), len(rounds))
    head = nan_free_mean(sum(item.head_ms for item in rounds), len(rounds))
    verify = nan_free_mean(sum(item.verify_ms for item in rounds), len(rounds))
    step = nan_free_mean(sum(steps), len(steps))
    return Cost(draft, head, verify, step, nan_free_mean(draft + head + verify, step))
