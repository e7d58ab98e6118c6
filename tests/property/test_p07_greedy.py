"""P7: at temperature 0 the output is the target's own greedy output, token for token, with real
caches in float64: 50 prompts under every head, convention and solver."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from xpress_exp.builders import DraftModel
from xpress_exp.decode import decode_autoregressive, decode_speculative
from xpress_exp.solver import JacobiSolver, ParallelSolver, SequentialSolver
from xpress_exp.target import TinyTarget
from xpress_exp.types import Proposal
from xpress_exp.verifier import RejectionVerifier

VOCAB, NUM_PROMPTS, LONGEST = 16, 50, 11
SOLVERS: dict[str, Any] = {
    "parallel": ParallelSolver(),
    "sequential": SequentialSolver(),
    "jacobi0": JacobiSolver(0),
    "jacobi2": JacobiSolver(2),
    "jacobi9": JacobiSolver(9, seed="argmax"),
}


class Hinted:
    """Puts the first `counts`[round] drafts right and the next one wrong, whatever `inner` said: an
    untrained drafter would have nearly all of its drafts rejected."""

    def __init__(self, inner: Any, text: tuple[int, ...], counts: Callable[[int], int]) -> None:
        self.inner, self.text, self.counts = inner, text, counts
        self.place, self.round = 1, 0

    def propose(self, *arguments: Any) -> Proposal:
        drafted = self.inner.propose(*arguments)
        tokens = drafted.tokens.clone()
        truth = self.text[self.place : self.place + tokens.shape[1]]
        right = min(self.counts(self.round), len(truth))
        tokens[0, :right] = torch.tensor(truth[:right], dtype=torch.int64)
        if right < len(truth):
            tokens[0, right] = (truth[right] + 1) % VOCAB
        self.place, self.round = self.place + right + 1, self.round + 1
        return replace(drafted, tokens=tokens)


@pytest.fixture(scope="module")
def target(make_target: Callable[..., TinyTarget]) -> TinyTarget:
    return make_target("qwen3", vocab_size=VOCAB, num_layers=2, layer_ids=(0,), seed=4, scale=4.0)


@functools.cache
def prompts() -> list[list[int]]:
    """The first ten are one token long."""
    generator = torch.Generator().manual_seed(1)
    lengths = [1 if index < 10 else 2 + index % 7 for index in range(NUM_PROMPTS)]
    return [torch.randint(4, VOCAB, (n,), generator=generator).tolist() for n in lengths]


@functools.cache
def plain(target: TinyTarget, index: int, limit: int) -> Any:
    return decode_autoregressive(
        target, prompts()[index], temperature=0.0, max_new_tokens=limit, generator=None
    )


def speculative(target: TinyTarget, model: DraftModel, solver: Any, index: int, limit: int) -> Any:
    text = plain(target, index, LONGEST + 9).tokens
    hinted: Any = Hinted(solver, text, counts(index))
    return decode_speculative(
        target,
        model,
        hinted,
        RejectionVerifier(),  # it refuses temperature 0: the loop puts the greedy one in its place
        prompts()[index],
        temperature=0.0,
        draft_temperature=0.0,
        max_new_tokens=limit,
        generator=None,
    )


def counts(index: int) -> Callable[[int], int]:
    """Right drafts of each round: all, none, or 0, 1, .., N in turn."""
    if index % 5 < 2:
        return lambda _round: 9 * (index % 5)
    return lambda number: (number + index) % 5


@pytest.mark.property("P7")
@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("convention", ["fill_in", "shift"])
@pytest.mark.parametrize("head", ["none", "markov", "gated", "rnn", "gru", "xpress"])
def test_p07_greedy_output_is_the_plain_output(
    target: TinyTarget,
    make_model: Callable[..., DraftModel],
    head: str,
    convention: str,
    name: str,
) -> None:
    """Limits go from 1 to LONGEST: they fall on, inside and beyond a block (N = 3 or 4)."""
    model = make_model(target, head, convention, num_layers=1, randomize=0.4)
    seen = {"stop inside": 0, "all accepted": 0, "none accepted": 0, "more than wanted": 0}
    for index in range(NUM_PROMPTS):
        limit = LONGEST if index % 2 else 1 + index // 2 % LONGEST
        found = speculative(target, model, SOLVERS[name], index, limit)
        expected = plain(target, index, limit)
        assert found.tokens == expected.tokens, (index, limit)
        assert len(found.tokens) <= limit
        assert found.finish_reason == expected.finish_reason
        accepted = [entry.accepted for entry in found.rounds]
        cut = any(entry.accepted + 1 > entry.committed for entry in found.rounds)
        seen["stop inside"] += cut and found.finish_reason == "stop"
        seen["more than wanted"] += cut and found.finish_reason == "length"
        seen["all accepted"] += model.slots.num_draft_tokens in accepted
        seen["none accepted"] += 0 in accepted
    assert all(seen.values()), seen
