"""P6: the output law of one round is the target's, to rounding, for every way of drafting; exact
enumeration through the real solvers and verifiers (see output.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from xpress_exp.head import NoHead
from xpress_exp.law import Truncation
from xpress_exp.solver import JacobiSolver, ParallelSolver, SequentialSolver
from xpress_exp.types import ModelDims, Proposal
from xpress_exp.verifier import DeltaVerifier, GreedyVerifier, RejectionVerifier

from .cells import Tables, cells, product_of
from .output import Drafts, drafts_of, output_law, variation
from .toy import Toy, tabular, with_head

EXACT = 1e-12
TRUNCATIONS = [Truncation(), Truncation(2), Truncation(None, 0.7), Truncation(2, 0.6)]
SHARED = {
    "sequential": SequentialSolver(),
    "parallel": ParallelSolver(),
    **{
        f"jacobi{k}-{seed}": JacobiSolver(k, seed=seed)
        for k in (0, 1, 2, 3)
        for seed in ("sampled", "argmax")
    },
    **{f"last{k}": JacobiSolver(k, noise="last") for k in (1, 2, 3)},
}


def distance(toy: Toy, drafts: Drafts, verifier: Any) -> float:
    return variation(output_law(toy, drafts, verifier), toy.law())


def without_head(toy: Toy) -> Any:
    """dFlash alone: the base logits are the draft's law."""
    dims = ModelDims(1, toy.vocab, toy.vocab, toy.block.slots)
    return replace(toy, head=NoHead(dims, torch.zeros(toy.vocab, 1)).double())


@pytest.mark.property("P6")
@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
@pytest.mark.parametrize("solver", SHARED)
def test_sampled_drafts_of_one_noise_under_rejection(solver: str, truncation: Truncation) -> None:
    """noise=shared with both seeds and greedy passes with a drawn last one, at every K."""
    for temperature in (1.0, 0.6):
        toy = tabular().filtered(truncation, temperature)
        drafts = drafts_of(toy, SHARED[solver])
        assert distance(toy, drafts, RejectionVerifier()) < EXACT


@pytest.mark.property("P6")
@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
def test_dflash_sampled_and_greedy_drafts(truncation: Truncation) -> None:
    toy = without_head(tabular()).filtered(truncation, 0.8)
    sampled = drafts_of(toy, ParallelSolver(), [toy.base()])
    assert distance(toy, sampled, RejectionVerifier()) < EXACT
    greedy = ParallelSolver().propose(toy.rows(1), toy.head, 0.0, None)
    once = Drafts(greedy, torch.ones(1, dtype=torch.float64))
    assert distance(toy, once, DeltaVerifier()) < EXACT


@pytest.mark.property("P6")
@pytest.mark.parametrize("passes", [1, 2, 3])
def test_greedy_drafts_of_every_solver_under_delta(passes: int) -> None:
    for toy in (tabular(), tabular().filtered(Truncation(2, 0.8), 0.7)):
        for solver in (JacobiSolver(passes), SequentialSolver()):
            greedy = solver.propose(toy.rows(1), toy.head, 0.0, None)
            once = Drafts(greedy, torch.ones(1, dtype=torch.float64))
            assert distance(toy, once, DeltaVerifier()) < EXACT


@pytest.mark.property("P6")
@pytest.mark.parametrize("convention", ["fill_in", "shift"])
@pytest.mark.parametrize("kind", ["markov", "gated", "rnn", "gru", "xpress"])
def test_every_head_sequential_and_jacobi(kind: str, convention: str) -> None:
    for vocab_ids in (None, torch.tensor([0, 2])):
        toy = with_head(kind, convention, vocab_ids)
        apart = max(float(c.softmax(-1).std(0).max()) for c in toy.prefixes()[1:])
        assert apart > 0.01, "the head reads nothing: this would test dFlash again"
        for solver in (SequentialSolver(), JacobiSolver(1), JacobiSolver(2), JacobiSolver(3)):
            drafts = drafts_of(toy, solver)
            assert distance(toy, drafts, RejectionVerifier()) < EXACT


@pytest.mark.property("P6")
@pytest.mark.parametrize("seed", ["sampled", "argmax"])
@pytest.mark.parametrize(
    ("vocab", "drafts", "passes"), [(3, 3, 1), (3, 2, 2), (2, 3, 2), (2, 2, 3)]
)
def test_fresh_noise(vocab: int, drafts: int, passes: int, seed: Any) -> None:
    """A table for the seed and one for every pass, all independent."""
    toy = tabular(vocab, drafts)
    solver = JacobiSolver(passes, noise="fresh", seed=seed)
    found = drafts_of(toy, solver, [toy.base(), *[toy.prefixes()] * passes])
    assert distance(toy, found, RejectionVerifier()) < EXACT


@pytest.mark.property("P12d")
@pytest.mark.parametrize("seed", ["sampled", "argmax"])
@pytest.mark.parametrize("noise", ["shared", "last"])
def test_stopping_at_the_fixed_point_is_the_last_pass(noise: Any, seed: Any) -> None:
    """Over all cells of the noise. A batch stops when its slowest row does, so rows are batched by
    the pass after which they change no more."""
    toy, most = tabular(), 5
    table, shares = product_of([cells(c) for c in toy.solver_contexts()])

    def drafted(rows: torch.Tensor, passes: int, stop: Any = "never") -> Any:
        solver = JacobiSolver(passes, noise=noise, seed=seed, stop=stop)
        return solver.propose(toy.rows(len(rows)), toy.head, 1.0, Tables(table[rows]))

    everything = torch.arange(len(shares))
    full = drafted(everything, most)
    settled = torch.full_like(everything, most)
    for passes in range(most, 0, -1):
        settled[(drafted(everything, passes).tokens == full.tokens).all(1)] = passes
    assert settled.unique().tolist() == [1, 2, 3]
    for passes in (1, 2, 3):
        rows = everything[settled == passes]
        found = drafted(rows, most, "fixed_point")
        assert found.num_passes <= passes + 1 + (noise == "last")
        assert torch.equal(found.tokens, full.tokens[rows])
        torch.testing.assert_close(found.logits, full.logits[rows], rtol=0, atol=0)


def test_temperature_zero_accepts_the_targets_argmax_only() -> None:
    toy = tabular()
    drafts = toy.all_drafts()
    text: list[int] = []
    for k in range(4):
        text.append(
            int(toy.target[k][sum(t * 3 ** (k - 1 - i) for i, t in enumerate(text))].argmax())
        )
    found = GreedyVerifier().verify(Proposal(drafts, None), toy.target_logits(drafts), 0.0, None)
    for row, tokens in enumerate(drafts.tolist()):
        count = next((k for k in range(3) if tokens[k] != text[k]), 3)
        assert int(found.num_accepted[row]) == count
        assert int(found.next_token[row]) == text[count]
