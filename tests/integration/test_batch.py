"""Batched decoding against the one-prompt loops: rows of other lengths, limits and acceptance."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from xpress_exp.builders import DraftModel
from xpress_exp.decode import (
    Drafting,
    PositionNoise,
    Request,
    decode_autoregressive,
    decode_batch,
    decode_speculative,
    random_stream,
)
from xpress_exp.decode.noise import Draws
from xpress_exp.few_rows import LayoutChoice
from xpress_exp.solver import JacobiSolver, ParallelSolver, SequentialSolver
from xpress_exp.target import TinyTarget, tiny_target
from xpress_exp.types import SampleTrace
from xpress_exp.verifier import DeltaVerifier, GumbelCoupledVerifier, RejectionVerifier

VOCAB, LIMIT = 14, 17
SAME = ("prompt_id", "domain", "tokens", "prompt_tokens", "finish_reason")


@functools.cache
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    lengths = [1, 9, 4, 2, 7, 1, 5, 3, 6]
    return [torch.randint(4, VOCAB, (n,), generator=generator).tolist() for n in lengths]


@pytest.fixture(scope="module")
def target() -> TinyTarget:
    # Logits not so sharp that a guess is never right, and stop tokens that do occur.
    made = tiny_target("llama", vocab_size=VOCAB, dtype=torch.float64, seed=3, scale=3.0)
    assert made.make_fast(LayoutChoice()) == ""
    return made.with_stop_tokens([2, 9])  # type: ignore[return-value]


@pytest.fixture(scope="module")
def model(target: TinyTarget, make_model: Callable[..., DraftModel]) -> DraftModel:
    return make_model(target, "markov", block_size=5, randomize=0.3)


def requests(draws: Callable[[int], Draws]) -> list[Request]:
    return [
        Request(tuple(ids), draws(index), f"p{index}", "d") for index, ids in enumerate(prompts())
    ]


def facts(trace: SampleTrace) -> tuple[Any, ...]:
    counts = [(r.drafted, r.accepted, r.committed) for r in trace.rounds]
    return (*(getattr(trace, name) for name in SAME), counts)


CASES: dict[str, tuple[float, float, Any, Any]] = {
    "greedy": (0.0, 0.0, JacobiSolver(2), RejectionVerifier()),
    "greedy parallel": (0.0, 0.0, ParallelSolver(), RejectionVerifier()),
    "rejection": (1.0, 1.0, JacobiSolver(3), RejectionVerifier()),
    "rejection fresh": (1.0, 1.0, JacobiSolver(2, noise="fresh"), RejectionVerifier()),
    "sequential": (0.7, 0.7, SequentialSolver(), RejectionVerifier()),
    "delta": (1.0, 0.0, JacobiSolver(2), DeltaVerifier()),
    "coupled": (1.0, 1.0, JacobiSolver(2), GumbelCoupledVerifier()),
}


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_rows_equal_the_one_prompt_loop(
    target: TinyTarget, model: DraftModel, case: str, batch: int
) -> None:
    temperature, draft_temperature, solver, verifier = CASES[case]

    def draws(index: int) -> Draws:
        if verifier.coupled:
            return PositionNoise(target.device, VOCAB, "t", index)
        return random_stream(target.device, "t", index)

    alone = [
        decode_speculative(
            target,
            model,
            solver,
            verifier,
            prompt,
            temperature=temperature,
            draft_temperature=draft_temperature,
            max_new_tokens=LIMIT,
            generator=draws(index),
            prompt_id=f"p{index}",
            domain="d",
        )
        for index, prompt in enumerate(prompts())
    ]
    together = decode_batch(
        target,
        requests(draws),
        drafting=Drafting(model, solver, verifier, draft_temperature),
        batch=batch,
        temperature=temperature,
        max_new_tokens=LIMIT,
    )
    assert [facts(trace) for trace in together] == [facts(trace) for trace in alone]
    accepted = {r.accepted for trace in alone for r in trace.rounds}
    assert len(accepted) > 1, "rows that all accept alike prove nothing about ragged rows"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_plain_rows_equal_the_one_prompt_loop(target: TinyTarget, temperature: float) -> None:
    def draws(index: int) -> Draws:
        return random_stream(target.device, "ar", index)

    alone = [
        decode_autoregressive(
            target,
            prompt,
            temperature=temperature,
            max_new_tokens=LIMIT,
            generator=draws(index),
            prompt_id=f"p{index}",
            domain="d",
        )
        for index, prompt in enumerate(prompts())
    ]
    together = decode_batch(
        target,
        requests(draws),
        drafting=None,
        batch=4,
        temperature=temperature,
        max_new_tokens=LIMIT,
    )
    assert [facts(trace) for trace in together] == [facts(trace) for trace in alone]
    assert {trace.finish_reason for trace in alone} == {"stop", "length"}
    assert all(len(t.step_ms) == t.num_decoded for t in together)


def test_a_target_without_ragged_caches_is_refused() -> None:
    plain = tiny_target("llama", vocab_size=VOCAB)
    with pytest.raises(ValueError, match=r"decode\.batch=2 needs decode\.kernels=fast"):
        decode_batch(
            plain,
            requests(lambda _: None)[:2],
            drafting=None,
            batch=2,
            temperature=0.0,
            max_new_tokens=4,
        )


@pytest.mark.parametrize("change", [{"batch": 0}, {"max_new_tokens": 0}])
def test_impossible_sizes_are_refused(target: TinyTarget, change: dict[str, int]) -> None:
    sizes = {"batch": 2, "max_new_tokens": 4} | change
    with pytest.raises(ValueError, match="both must be at least 1"):
        decode_batch(target, requests(lambda _: None), drafting=None, temperature=0.0, **sizes)
