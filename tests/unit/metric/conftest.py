"""Hand-written traces: what each round drafted, accepted and committed is in the test."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from xpress_exp.metric import EvalRecord
from xpress_exp.types import Round, SampleTrace

Trace = Callable[..., SampleTrace]
Record = Callable[..., EvalRecord]


def make_trace(
    rounds: Sequence[tuple[int, int]] = (),
    tokens: Sequence[int] | None = None,
    decode_ms: float = 0.0,
    step_ms: Sequence[float] = (),
    costs: tuple[float, float, float] = (1.0, 2.0, 4.0),
    prompt_id: str = "p",
) -> SampleTrace:
    """rounds: (accepted of 3 drafts, committed); costs: draft, head, verify ms of every round."""
    count = 1 + (sum(committed for _, committed in rounds) or len(step_ms))
    return SampleTrace(
        prompt_id=prompt_id,
        domain="math",
        tokens=tuple(tokens) if tokens is not None else tuple(range(count)),
        rounds=tuple(Round(3, accepted, committed, 1, *costs) for accepted, committed in rounds),
        prompt_tokens=4,
        prefill_ms=50.0,
        decode_ms=decode_ms,
        step_ms=tuple(step_ms),
        finish_reason="length",
    )


def make_record(
    arm: SampleTrace, ar: SampleTrace, prompt_id: str = "p", temperature: float = 0.0
) -> EvalRecord:
    return EvalRecord(prompt_id, "math", temperature, round=0, position=1, ar=ar, arm=arm)


@pytest.fixture
def trace() -> Trace:
    return make_trace


@pytest.fixture
def record() -> Record:
    return make_record
