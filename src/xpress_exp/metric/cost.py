"""Cost of a round, the tau at which drafting pays for itself, and the setting that pays best.

Times are milliseconds. A setting is a way of drafting (head, passes, block size) and a verify
length L: of the N drafts only the first L are verified. Whether draft j of a block is accepted does
not depend on how many are verified behind it, so L costs no new measurement of acceptance.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from xpress_exp.metric.record import EvalRecord
from xpress_exp.types import SampleTrace, nan_free_mean


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


@dataclass(frozen=True)
class Curve:
    """Milliseconds measured at some sizes, a straight line between neighbours, nothing outside.

    points: (size, ms), sizes ascending. Raises ValueError without a point, for sizes out of order
    and for times that are not positive numbers.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.points]
        if not sizes or sizes != sorted(set(sizes)):
            raise ValueError(f"sizes of a curve are {sizes}; give one or more, ascending")
        for size, ms in self.points:
            if not (math.isfinite(ms) and ms > 0):
                raise ValueError(f"a curve has {ms} ms at size {size}; leave the point out")

    def at(self, size: float) -> float:
        """Milliseconds at `size`; raises ValueError outside of the measured sizes."""
        sizes = [known for known, _ in self.points]
        if not sizes[0] <= size <= sizes[-1]:
            raise ValueError(
                f"size {size:g} lies outside the measured {sizes[0]:g} to {sizes[-1]:g}; measure it"
            )
        right = bisect_left(sizes, size)
        if sizes[right] == size:
            return self.points[right][1]
        (x0, y0), (x1, y1) = self.points[right - 1 : right + 1]
        return y0 + (y1 - y0) * (size - x0) / (x1 - x0)


@dataclass(frozen=True)
class PassCost:
    """Time of a head: fixed_ms once per block and pass_ms per pass (sequential: per step)."""

    fixed_ms: float
    pass_ms: float

    @classmethod
    def fitted(cls, measured: Mapping[float, float]) -> PassCost:
        """Least squares through measured {passes: ms}; raises ValueError for fewer than two."""
        if len(measured) < 2:
            raise ValueError(f"passes measured: {sorted(measured)}; a line needs two of them")
        slope, start = np.polyfit(list(measured), list(measured.values()), 1)
        return cls(float(start), float(slope))

    def at(self, passes: float) -> float:
        """Milliseconds of a block refined in `passes` passes."""
        return self.fixed_ms + self.pass_ms * passes


NO_HEAD = PassCost(0.0, 0.0)


@dataclass(frozen=True)
class Latencies:
    """Measured milliseconds on one machine; every time is that of the whole batch.

    step_ms: one token of plain decoding. verify: Curve over the tokens that the target reads, the
    anchor and L drafts. draft_ms: block size -> drafter pass with base logits. head: (head, block
    size) -> time of the head. other_ms: what a round takes beside the three.
    """

    step_ms: float
    verify: Curve
    draft_ms: Mapping[int, float]
    head: Mapping[tuple[str, int], PassCost]
    batch: int = 1
    other_ms: float = 0.0

    @property
    def plain_tokens_per_second(self) -> float:
        return 1000.0 * self.batch / self.step_ms


def at_batch(measured: Sequence[Latencies], batch: int) -> Latencies:
    """Latencies at a batch size between two measured ones, linear in the batch.

    Only block sizes, heads and verify sizes that both have are kept. Raises ValueError outside of
    the measured batch sizes.
    """
    known = sorted(measured, key=lambda item: item.batch)
    if not known or not known[0].batch <= batch <= known[-1].batch:
        raise ValueError(
            f"batch {batch} lies outside the measured {[item.batch for item in known]}; measure it"
        )
    for item in known:
        if item.batch == batch:
            return item
    high = next(item for item in known if item.batch > batch)
    low = known[known.index(high) - 1]
    share = (batch - low.batch) / (high.batch - low.batch)

    def mixed(left: float, right: float) -> float:
        return left + (right - left) * share

    sizes = sorted(dict(low.verify.points).keys() & dict(high.verify.points).keys())
    return Latencies(
        step_ms=mixed(low.step_ms, high.step_ms),
        verify=Curve(tuple((n, mixed(low.verify.at(n), high.verify.at(n))) for n in sizes)),
        draft_ms={
            block: mixed(low.draft_ms[block], high.draft_ms[block])
            for block in low.draft_ms.keys() & high.draft_ms.keys()
        },
        head={
            key: PassCost(
                mixed(low.head[key].fixed_ms, high.head[key].fixed_ms),
                mixed(low.head[key].pass_ms, high.head[key].pass_ms),
            )
            for key in low.head.keys() & high.head.keys()
        },
        batch=batch,
        other_ms=mixed(low.other_ms, high.other_ms),
    )


@dataclass(frozen=True)
class DraftProfile:
    """One way of drafting and how its drafts were accepted.

    num_passes: K of the solver, None when it has none; mean_passes: head evaluations per block.
    conditional: for j = 1..N the share of blocks that accept draft j among those that accepted
    all before it; nan where none did.
    """

    head: str
    num_passes: int | None
    block_size: int
    conditional: tuple[float, ...]
    mean_passes: float


def conditional_acceptance(traces: Sequence[SampleTrace]) -> tuple[float, ...]:
    """`DraftProfile.conditional` of one arm's traces, () without a round."""
    rounds = [item for trace in traces for item in trace.rounds]
    shares = []
    for place in range(1, 1 + max((item.drafted for item in rounds), default=0)):
        reached = [item for item in rounds if item.drafted >= place and item.accepted >= place - 1]
        shares.append(nan_free_mean(sum(item.accepted >= place for item in reached), len(reached)))
    return tuple(shares)


def expected_committed(conditional: Sequence[float], verify_length: int) -> float:
    """Tokens a round commits on average when the first `verify_length` drafts are verified:
    1 + sum over i <= L of the product of the first i conditional acceptances.

    Raises ValueError for a length beyond the drafts, and where an acceptance is needed that is
    unknown or no share.
    """
    if not 0 <= verify_length <= len(conditional):
        raise ValueError(f"verify_length={verify_length} must be 0 to {len(conditional)} drafts")
    total, survival = 1.0, 1.0
    for place, share in enumerate(conditional[:verify_length], 1):
        if survival == 0:
            break  # nothing gets here, so that what would happen does not matter
        if not 0 <= share <= 1:
            raise ValueError(f"the acceptance of draft {place} is {share}; measure more rounds")
        survival *= share
        total += survival
    return total


@dataclass(frozen=True)
class Prediction:
    """What a setting would do. unknown: why nothing is predicted, '' when it is; then the numbers
    are nan. speedup: over plain decoding of the same batch."""

    profile: DraftProfile
    verify_length: int
    batch: int
    committed: float = math.nan
    round_ms: float = math.nan
    tokens_per_second: float = math.nan
    speedup: float = math.nan
    unknown: str = ""


def predict(latencies: Latencies, profile: DraftProfile, verify_length: int) -> Prediction:
    """Tokens per second of one setting; what was not measured makes it unknown, never a guess."""
    key = (profile.head, profile.block_size)
    try:
        committed = expected_committed(profile.conditional, verify_length)
        if profile.block_size not in latencies.draft_ms:
            raise ValueError(f"no drafter time at block size {profile.block_size}; measure it")
        if key not in latencies.head:
            raise ValueError(f"no time of head {key[0]} at block size {key[1]}; measure it")
        round_ms = (
            latencies.draft_ms[profile.block_size]
            + latencies.head[key].at(profile.mean_passes)
            + latencies.verify.at(1 + verify_length)
            + latencies.other_ms
        )
        if not (math.isfinite(round_ms) and round_ms > 0):
            raise ValueError(f"a round would take {round_ms} ms; measure the head's passes again")
    except ValueError as error:
        return Prediction(profile, verify_length, latencies.batch, unknown=str(error))
    rate = 1000.0 * latencies.batch * committed / round_ms
    return Prediction(
        profile,
        verify_length,
        latencies.batch,
        committed,
        round_ms,
        rate,
        rate / latencies.plain_tokens_per_second,
    )


def predictions(latencies: Latencies, profiles: Sequence[DraftProfile]) -> list[Prediction]:
    """Every way of drafting at every verify length 1..N."""
    return [
        predict(latencies, profile, length)
        for profile in profiles
        for length in range(1, 1 + len(profile.conditional))
    ]


def recommend(found: Sequence[Prediction]) -> Prediction:
    """The fastest known prediction, of equal ones the first; it may still be slower than plain
    decoding (speedup below 1). Raises ValueError when none is known."""
    known = [item for item in found if not item.unknown]
    if not known:
        reasons = sorted({item.unknown for item in found}) or ["no setting was given"]
        raise ValueError(f"nothing can be recommended: {'; '.join(reasons)}")
    return max(known, key=lambda item: item.tokens_per_second)
