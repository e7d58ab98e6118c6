"""Percentile bootstrap over prompts for ratios of sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """Central 95 % interval; both ends nan when it cannot be given, `note` says why."""

    low: float
    high: float
    note: str = ""


def unknown(note: str) -> Interval:
    """An interval that cannot be given."""
    return Interval(math.nan, math.nan, note)


def resampled_sums(columns: NDArray[np.float64], seed: int = 0) -> NDArray[np.float64]:
    """Sums of each column over RESAMPLES draws of the rows with replacement.

    columns [n, c] one row per prompt; returns [RESAMPLES, c]. All columns use the same draws, so
    that ratios and differences of columns are paired.
    """
    count = columns.shape[0]
    # How often each prompt is drawn: the same law as drawing indices, without [m, n, c] in memory.
    draws = np.random.default_rng(seed).multinomial(count, [1 / count] * count, size=RESAMPLES)
    return draws @ columns


def divide(numerator: NDArray[np.float64], denominator: NDArray[np.float64]) -> NDArray[np.float64]:
    """numerator / denominator, nan where the denominator is 0."""
    empty = np.full_like(numerator, math.nan)
    return np.divide(numerator, denominator, out=empty, where=denominator != 0)


def percentile_interval(samples: NDArray[np.float64], note: str = "") -> Interval:
    """Central interval of bootstrap samples [m]; resamples without a value (nan) are left out."""
    known = samples[~np.isnan(samples)]
    if known.size == 0:
        return unknown("no prompt decoded a token")
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(known, [tail, 1 - tail])
    return Interval(float(low), float(high), note)


def ratio_interval(
    numerators: Sequence[float], denominators: Sequence[float], min_prompts: int = 2, seed: int = 0
) -> Interval:
    """Interval of sum(numerators) / sum(denominators), one entry of each per prompt.

    Fewer than `min_prompts` prompts give nan ends and a note.
    """
    if len(numerators) < min_prompts:
        return unknown(f"{len(numerators)} prompts; an interval needs {min_prompts}")
    columns = np.array([numerators, denominators], dtype=np.float64).T
    sums = resampled_sums(columns, seed)
    return percentile_interval(divide(sums[:, 0], sums[:, 1]))
