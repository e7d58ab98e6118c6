"""The loop against scripted doubles: every count and every cache state is known beforehand."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from xpress_exp.decode import decode_autoregressive, decode_speculative
from xpress_exp.solver.contract import BlockState
from xpress_exp.types import Proposal
from xpress_exp.verifier import RejectionVerifier

VOCAB, STOP = 40, 2
PROMPT = [10, 11, 12]
NUM_DRAFTS = 3  # of the drafter double
Run = Callable[[list[int], list[int], int], tuple[Any, Any]]


def follow(script: list[int]) -> Callable[[tuple[int, ...]], Tensor]:
    """Logits whose greedy continuation of PROMPT is `script`."""

    def table(tokens: tuple[int, ...]) -> Tensor:
        answer = script[len(tokens) - len(PROMPT)] if len(tokens) >= len(PROMPT) else 0
        return torch.nn.functional.one_hot(torch.tensor(answer), VOCAB).double()

    return table


class ScriptSolver:
    """Proposes the right tokens for the round's scripted count, then a wrong one."""

    def __init__(self, text: list[int], counts: list[int], drafter: Any) -> None:
        self.text, self.counts, self.drafter = text, iter(counts), drafter

    def propose(
        self, block: BlockState, _head: Any, _temperature: float, _generator: Any
    ) -> Proposal:
        start = self.drafter.start
        assert [int(block.anchor_previous), int(block.anchor)] == self.text[start - 1 : start + 1]
        assert block.base_logits.shape == (1, 3, 1)
        right = next(self.counts)
        future = (self.text + [0] * NUM_DRAFTS)[start + 1 :][:NUM_DRAFTS]
        tokens = [token if k < right else (token + 1) % VOCAB for k, token in enumerate(future)]
        return Proposal(torch.tensor([tokens]), None, num_passes=7)


@pytest.fixture
def run_script(make_target: Any, drafter: Any) -> Run:
    """Decodes `script` with rounds that accept the given counts; returns trace and target."""

    def run(script: list[int], counts: list[int], limit: int) -> tuple[Any, Any]:
        model: Any = SimpleNamespace(
            drafter=drafter, head=None, vocab_ids=None, base_logits=lambda hidden: hidden
        )
        target = make_target(follow(script + [0] * 8))
        trace = decode_speculative(
            target,
            model,
            ScriptSolver(PROMPT + script, counts, drafter),
            RejectionVerifier(),  # it refuses temperature 0: the loop must put greedy in its place
            PROMPT,
            temperature=0.0,
            draft_temperature=0.0,
            max_new_tokens=limit,
            generator=None,
            prompt_id="p",
            domain="math",
        )
        return trace, target

    return run


SCRIPT = [20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35]


def test_counts_of_partly_accepted_rounds(run_script: Run) -> None:
    trace, target = run_script(SCRIPT, [2, 0, 3, 1], 11)
    assert trace.tokens == tuple(SCRIPT[:11])
    assert [item.accepted for item in trace.rounds] == [2, 0, 3, 1]
    assert [item.committed for item in trace.rounds] == [3, 1, 4, 2]
    assert {item.drafted for item in trace.rounds} == {3}
    assert {item.num_passes for item in trace.rounds} == {7}
    assert (trace.prompt_id, trace.domain, trace.prompt_tokens) == ("p", "math", 3)
    assert trace.finish_reason == "length"
    assert trace.num_decoded == sum(item.committed for item in trace.rounds)
    # The last committed token is the next anchor: never cached.
    assert target.cache.tokens == PROMPT + SCRIPT[:10]
    assert trace.step_ms == ()


def test_all_accepted_and_all_rejected(run_script: Run) -> None:
    everything, _ = run_script(SCRIPT, [3, 3, 3], 13)
    assert [item.committed for item in everything.rounds] == [4, 4, 4]
    nothing, _ = run_script(SCRIPT, [0] * 6, 7)
    assert [item.committed for item in nothing.rounds] == [1] * 6
    assert nothing.tokens == tuple(SCRIPT[:7])


@pytest.mark.parametrize(
    ("limit", "committed"), [(1, []), (2, [1]), (3, [2]), (4, [3]), (5, [4]), (6, [4, 1])]
)
def test_limit_cuts_the_block_but_not_the_accepted_count(
    run_script: Run, limit: int, committed: list[int]
) -> None:
    trace, _ = run_script(SCRIPT, [3] * 8, limit)
    assert trace.tokens == tuple(SCRIPT[:limit])
    assert [item.committed for item in trace.rounds] == committed
    assert [item.accepted for item in trace.rounds] == [3] * len(committed)


@pytest.mark.parametrize("place", range(6))
def test_stop_token_anywhere_in_the_block(run_script: Run, place: int) -> None:
    script = [*SCRIPT[:place], STOP, *SCRIPT[place + 1 :]]
    trace, _ = run_script(script, [3] * 8, 12)
    assert trace.tokens == tuple(script[: place + 1])
    assert trace.finish_reason == "stop"
    assert trace.num_decoded == sum(item.committed for item in trace.rounds) == place
    assert len(trace.rounds) == -(-place // 4)


def test_autoregressive_stops_and_times_every_later_token(make_target: Any) -> None:
    script = [20, 21, 22, STOP, 24]
    target = make_target(follow(script))
    trace = decode_autoregressive(
        target, PROMPT, temperature=0.0, max_new_tokens=10, generator=None
    )
    assert trace.tokens == (20, 21, 22, STOP)
    assert trace.finish_reason == "stop"
    assert len(trace.step_ms) == 3
    assert trace.decode_ms == pytest.approx(sum(trace.step_ms))
    assert trace.rounds == ()


@pytest.mark.parametrize(("prompt", "limit", "field"), [([], 4, "prompt"), ([5], 0, "max_new")])
def test_empty_prompt_or_limit_is_refused(
    make_target: Any, prompt: list[int], limit: int, field: str
) -> None:
    target = make_target(follow(SCRIPT))
    with pytest.raises(ValueError, match=field):
        decode_autoregressive(target, prompt, temperature=0.0, max_new_tokens=limit, generator=None)
