"""Acceptance: how many tokens a target verification commits.

tau = committed tokens / verifications: the bonus token counts, the prefill's token and tokens cut
by a stop token or by max_new_tokens do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from xpress_exp.metric.bootstrap import (
    Interval,
    divide,
    percentile_interval,
    ratio_interval,
    resampled_sums,
    unknown,
)
from xpress_exp.types import SampleTrace, nan_free_mean


@dataclass(frozen=True)
class Acceptance:
    """Counts pooled over prompts and the ratios made from them; a ratio without rounds is nan.

    num_tokens and num_rounds are tau's numerator and denominator; num_accepted and num_drafted
    count draft tokens before cutting. tau_macro: mean of the prompts' own tau, prompts without a
    round left out. tau_uncut: (accepted + 1) / rounds, the count of serving engines. by_position:
    share of rounds that accepted their k-th draft, k = 1..N.
    """

    num_prompts: int
    num_tokens: int
    num_rounds: int
    num_accepted: int
    num_drafted: int
    tau: float
    tau_macro: float
    tau_uncut: float
    accepted_per_drafted: float
    by_position: tuple[float, ...]


def committed_tokens(trace: SampleTrace) -> int:
    """Tokens of one prompt that its rounds committed."""
    return sum(item.committed for item in trace.rounds)


def accept_by_position(traces: Sequence[SampleTrace]) -> tuple[float, ...]:
    """Share of rounds whose k-th draft was accepted, among rounds that drafted at least k."""
    rounds = [item for trace in traces for item in trace.rounds]
    longest = max((item.drafted for item in rounds), default=0)
    shares = []
    for position in range(1, longest + 1):
        asked = sum(item.drafted >= position for item in rounds)
        shares.append(sum(item.accepted >= position for item in rounds) / asked)
    return tuple(shares)


def acceptance(traces: Sequence[SampleTrace]) -> Acceptance:
    """All acceptance numbers of one arm, one trace per prompt."""
    rounds = [item for trace in traces for item in trace.rounds]
    tokens = sum(committed_tokens(trace) for trace in traces)
    accepted = sum(item.accepted for item in rounds)
    drafted = sum(item.drafted for item in rounds)
    own = [committed_tokens(trace) / len(trace.rounds) for trace in traces if trace.rounds]
    return Acceptance(
        num_prompts=len(traces),
        num_tokens=tokens,
        num_rounds=len(rounds),
        num_accepted=accepted,
        num_drafted=drafted,
        tau=nan_free_mean(tokens, len(rounds)),
        tau_macro=nan_free_mean(sum(own), len(own)),
        tau_uncut=nan_free_mean(accepted + len(rounds), len(rounds)),
        accepted_per_drafted=nan_free_mean(accepted, drafted),
        by_position=accept_by_position(traces),
    )


def tau_interval(traces: Sequence[SampleTrace], seed: int = 0) -> Interval:
    """Bootstrap interval of tau over prompts; nan with fewer than two."""
    return ratio_interval(
        [committed_tokens(trace) for trace in traces],
        [len(trace.rounds) for trace in traces],
        seed=seed,
    )


@dataclass(frozen=True)
class TauDifference:
    """tau of an arm minus tau of a reference, both on their common prompts."""

    difference: float
    interval: Interval
    num_prompts: int


def tau_difference(
    arm: Mapping[str, SampleTrace], reference: Mapping[str, SampleTrace], seed: int = 0
) -> TauDifference:
    """Paired bootstrap of tau(arm) - tau(reference); both map prompt id to trace.

    Prompts are drawn together for both; without two common prompts the interval is nan.
    """
    common = sorted(arm.keys() & reference.keys())
    columns = np.array(
        [
            [
                committed_tokens(arm[prompt]),
                len(arm[prompt].rounds),
                committed_tokens(reference[prompt]),
                len(reference[prompt].rounds),
            ]
            for prompt in common
        ],
        dtype=np.float64,
    ).reshape(len(common), 4)
    total = columns.sum(0)
    value = nan_free_mean(total[0], total[1]) - nan_free_mean(total[2], total[3])
    if len(common) < 2:
        note = f"{len(common)} common prompts; an interval needs 2"
        return TauDifference(float(value), unknown(note), len(common))
    sums = resampled_sums(columns, seed)
    samples = divide(sums[:, 0], sums[:, 1]) - divide(sums[:, 2], sums[:, 3])
    return TauDifference(float(value), percentile_interval(samples), len(common))
