"""P8: with noise keyed by position, speculative sampling gives the very tokens of plain sampling
under the same noise, through the whole loop with caches, on a tiny float64 transformer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from xpress_exp.builders import DraftModel
from xpress_exp.decode import PositionNoise, decode_autoregressive, decode_speculative
from xpress_exp.law import ALL_TOKENS, Truncation
from xpress_exp.solver import BlockState, JacobiSolver, ParallelSolver, SequentialSolver, Solver
from xpress_exp.target import TargetModel, TinyTarget
from xpress_exp.types import Proposal, SampleTrace
from xpress_exp.verifier import GumbelCoupledVerifier

VOCAB, LENGTH, PROMPT = 14, 22, [5, 9, 4, 13, 6]
SOLVERS: dict[str, Solver] = {
    "parallel": ParallelSolver(),
    "sequential": SequentialSolver(),
    **{f"jacobi{k}": JacobiSolver(k) for k in (0, 1, 2, 9)},
    "argmax seed": JacobiSolver(2, seed="argmax"),
    "last": JacobiSolver(3, noise="last"),
}


@pytest.fixture(scope="module")
def target(make_target: Callable[..., TinyTarget]) -> TargetModel:
    """It never stops on its own: short texts would test little."""
    return make_target("qwen3", vocab_size=VOCAB, seed=3, scale=3.0).with_stop_tokens(())


def noise(target: TargetModel, key: int = 0) -> PositionNoise:
    return PositionNoise(target.device, target.vocab_size, "coupled", key)


@functools.cache
def plain(target: TargetModel, key: int = 0, truncation: Truncation = ALL_TOKENS) -> SampleTrace:
    return decode_autoregressive(
        target,
        PROMPT,
        temperature=1.0,
        max_new_tokens=LENGTH,
        generator=noise(target, key),
        truncation=truncation,
    )


class Hinted:
    """Puts the first 0, 1, .., N drafts right, in turn over the rounds; a random drafter alone is
    seldom accepted. This looks at the target's own future: no other rule would survive it."""

    def __init__(self, inner: Solver, text: tuple[int, ...]) -> None:
        self.inner, self.text, self.turn = inner, text, 0

    def propose(self, block: BlockState, head: Any, temperature: float, generator: Any) -> Proposal:
        proposal = self.inner.propose(block, head, temperature, generator)
        tokens, place = proposal.tokens.clone(), generator.position - len(PROMPT)
        right = self.text[place:][: self.turn % (tokens.shape[1] + 1)]
        tokens[0, : len(right)] = torch.tensor(right, dtype=torch.int64)
        self.turn += 1
        return replace(proposal, tokens=tokens)


def coupled(
    target: TargetModel, model: DraftModel, solver: Any, key: int = 0, **options: Any
) -> SampleTrace:
    settings = {"draft_temperature": 1.0, "max_new_tokens": LENGTH, **options}
    return decode_speculative(
        target,
        model,
        solver,
        GumbelCoupledVerifier(),
        PROMPT,
        temperature=1.0,
        generator=noise(target, key),
        **settings,
    )


@pytest.mark.property("P8")
@pytest.mark.parametrize("convention", ["fill_in", "shift"])
@pytest.mark.parametrize("head", ["none", "markov", "gated", "rnn", "gru", "xpress"])
def test_every_drafter_head_and_solver_gives_the_tokens_of_plain_sampling(
    target: TargetModel, make_model: Callable[..., DraftModel], head: str, convention: str
) -> None:
    expected = plain(target)
    assert len(set(expected.tokens)) > 5
    for vocab_ids in (None, torch.tensor([2, 4, 5, 7, 8, 11])):
        model = make_model(target, head, convention, vocab_ids=vocab_ids, randomize=0.5)
        for name, solver in SOLVERS.items():
            for chosen in (solver, Hinted(solver, expected.tokens)):
                found = coupled(target, model, chosen)
                assert found.tokens == expected.tokens, (name, vocab_ids)
            accepted = [item.accepted for item in found.rounds[:4]]
            assert all(count >= turn for turn, count in enumerate(accepted))


@pytest.mark.property("P8")
@pytest.mark.parametrize("truncation", [Truncation(3), Truncation(None, 0.6), Truncation(5, 0.8)])
def test_with_truncated_laws_and_with_greedy_drafts(
    target: TargetModel, make_model: Callable[..., DraftModel], truncation: Truncation
) -> None:
    model = make_model(target, "xpress", randomize=0.5)
    for key in range(3):
        expected = plain(target, key, truncation)
        assert expected.tokens != plain(target, key).tokens
        for draft_temperature in (1.0, 0.0):
            options = {"truncation": truncation, "draft_temperature": draft_temperature}
            found = coupled(target, model, JacobiSolver(2), key, **options)
            assert found.tokens == expected.tokens


def test_limits_and_stop_tokens_cut_both_alike(
    target: TargetModel,
    make_model: Callable[..., DraftModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, text = make_model(target, "markov", randomize=0.5), plain(target).tokens
    for limit in range(1, 8):
        solver = Hinted(JacobiSolver(2), text)
        assert coupled(target, model, solver, max_new_tokens=limit).tokens == text[:limit]
    stop = next(
        token for place, token in enumerate(text) if place > 6 and token not in text[:place]
    )
    monkeypatch.setattr(target, "stop_token_ids", frozenset({stop}))
    found = coupled(target, model, Hinted(JacobiSolver(2), text))
    assert found.tokens == text[: text.index(stop) + 1]
    assert found.finish_reason == "stop"


def test_another_key_is_another_text(target: TargetModel) -> None:
    assert len({plain(target, key).tokens for key in range(4)}) == 4


def test_a_drafter_equal_to_the_target_law_is_always_accepted(
    target: TargetModel, make_model: Callable[..., DraftModel]
) -> None:
    """Drafts drawn from the target's own logits under the noise of their positions."""
    text = plain(target).tokens

    class Oracle:
        def propose(self, block: BlockState, _head: Any, _temperature: float, generator: Any):
            tokens = torch.tensor([text[generator.position - len(PROMPT) - 1 :]])
            assert int(block.anchor) == int(tokens[0, 0])
            shape = (1, block.slots.num_draft_tokens, VOCAB)
            logits, known = [], [*PROMPT, *text[: generator.position - len(PROMPT)]]
            for k in range(shape[1]):
                output = target.forward(torch.tensor([known]), num_logits=1).logits
                assert output is not None
                eps = generator.gumbel(torch.empty(shape), None)[0, k]
                known.append(int((output[0, -1] + eps).argmax()))
                logits.append(output[0, -1])
            drafts = torch.tensor([known[-shape[1] :]])
            return Proposal(drafts, torch.stack(logits)[None])

    found = coupled(target, make_model(target), Oracle())
    assert [item.accepted for item in found.rounds] == [3] * len(found.rounds)
