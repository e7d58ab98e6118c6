"""Speed: tokens per second, and the ratio to the baseline of the same rounds.

Prefill and the first token are left out on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xpress_exp.metric.bootstrap import (
    Interval,
    divide,
    percentile_interval,
    resampled_sums,
    unknown,
)
from xpress_exp.metric.record import EvalRecord
from xpress_exp.types import SampleTrace, nan_free_mean

MIN_PROMPTS = 12


@dataclass(frozen=True)
class Speedup:
    """Baseline time per token / arm time per token, sums over prompts; above 1 the arm is faster.

    The interval is nan, with a note, below 12 prompts.
    """

    ratio: float
    interval: Interval
    num_prompts: int


def tokens_per_second(traces: Sequence[SampleTrace]) -> float:
    """Decoded tokens / decoding time of all prompts; nan without decoded tokens."""
    pairs = [(trace.num_decoded, trace.decode_ms) for trace in traces if trace.num_decoded > 0]
    seconds = sum(time for _, time in pairs) / 1000.0
    return nan_free_mean(sum(tokens for tokens, _ in pairs), seconds)


def speedup(records: Sequence[EvalRecord], seed: int = 0) -> Speedup:
    """Paired speed-up of the records' arm; prompts where either side decoded no token after the
    first are left out."""
    rows = [
        (item.ar.decode_ms, item.ar.num_decoded, item.arm.decode_ms, item.arm.num_decoded)
        for item in records
        if item.ar.num_decoded > 0 and item.arm.num_decoded > 0
    ]
    columns = np.array(rows, dtype=np.float64).reshape(len(rows), 4)
    ratio = float(_ratio(columns.sum(0, keepdims=True))[0])
    if len(rows) < MIN_PROMPTS:
        note = f"{len(rows)} prompts; an interval of speed needs {MIN_PROMPTS}"
        return Speedup(ratio, unknown(note), len(rows))
    return Speedup(ratio, percentile_interval(_ratio(resampled_sums(columns, seed))), len(rows))


def _ratio(sums: np.ndarray) -> np.ndarray:
    """Time ratio from sums [m, 4] of (ar ms, ar tokens, arm ms, arm tokens)."""
    return divide(divide(sums[:, 0], sums[:, 1]), divide(sums[:, 2], sums[:, 3]))
