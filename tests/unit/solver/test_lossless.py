"""The output law of one round at temperature 1 is the target's, for every solver (20,000 rounds,
chi-square over all outputs of a tabular model), and the known mistakes are caught."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
import torch

from xpress_exp.head import NoHead
from xpress_exp.solver import JacobiSolver, ParallelSolver, SequentialSolver
from xpress_exp.solver.contract import refined_logits
from xpress_exp.types import ModelDims
from xpress_exp.verifier import DeltaVerifier, RejectionVerifier

ROWS, VOCAB, DRAFTS = 20_000, 3, 3


def prefix_index(tokens, length):
    """Row of a table for anchor 0 followed by tokens[:, :length]."""
    index = torch.zeros_like(tokens[:, 0])
    for position in range(length):
        index = index * VOCAB + tokens[:, position]
    return index


def target_logits(target, tokens):
    """[b, N+1, V] target logits after every prefix of the drafts."""
    return torch.stack([target[k][prefix_index(tokens, k)] for k in range(DRAFTS + 1)], 1)


def completed(target, tokens, verification, generator):
    """Committed tokens of one round, completed by plain sampling to N+1 tokens."""
    count = verification.num_accepted
    output = torch.cat([tokens, tokens[:, :1]], 1)
    output[torch.arange(ROWS), count] = verification.next_token
    for position in range(1, DRAFTS + 1):
        law = target[position][prefix_index(output, position)].softmax(-1)
        drawn = torch.multinomial(law, 1, generator=generator)[:, 0]
        output[:, position] = torch.where(position > count, drawn, output[:, position])
    return output


def z_score(target, output):
    """(chi-square - df) / sqrt(2 df) of outputs against the exact target law, rare cells pooled."""
    expected = []
    for row in product(range(VOCAB), repeat=DRAFTS + 1):
        tokens = torch.tensor([row])
        laws = [target[k][prefix_index(tokens, k)][0].double().softmax(-1) for k in range(4)]
        expected.append(ROWS * math.prod(float(laws[k][row[k]]) for k in range(4)))
    expected = torch.tensor(expected, dtype=torch.float64)
    counts = torch.bincount(prefix_index(output, 4), minlength=VOCAB**4).double()
    rare = expected < 5
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    counts = torch.cat([counts[~rare], counts[rare].sum()[None]])
    df = len(expected) - 1
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    return (chi_square - df) / math.sqrt(2 * df)


def run(tabular, solver, change=None, bare=False):
    """(z score, mean accepted drafts) of one batch of rounds at temperature 1."""
    head, block, target = tabular(ROWS)
    if bare:
        head = NoHead(ModelDims(1, VOCAB, VOCAB, block.slots), torch.zeros(VOCAB, 1))
    generator = torch.Generator().manual_seed(17)
    draft = solver.propose(block, head, 1.0, generator)
    if change is not None:
        draft = change(draft, head, block)
    found = RejectionVerifier().verify(draft, target_logits(target, draft.tokens), 1.0, generator)
    score = z_score(target, completed(target, draft.tokens, found, generator))
    return score, float(found.num_accepted.double().mean())


SOLVERS = [
    SequentialSolver(),
    ParallelSolver(),
    *(JacobiSolver(k, seed=seed) for k in (1, 2, 3) for seed in ("sampled", "argmax")),
    JacobiSolver(2, noise="fresh"),
    JacobiSolver(2, noise="last"),
    JacobiSolver(0),
]


@pytest.mark.property("P6")
@pytest.mark.parametrize(
    "solver", SOLVERS, ids=lambda s: "-".join(map(str, [type(s).__name__, *vars(s).values()]))
)
def test_rejection_is_lossless_after_every_solver(tabular, solver):
    score, _ = run(tabular, solver)
    assert abs(score) < 4.5


def test_rejection_is_lossless_without_a_head(tabular):
    score, _ = run(tabular, SequentialSolver(), bare=True)
    assert abs(score) < 4.5


def recomputed(draft, head, block):
    prepared = head.prepare(block.hidden)
    return replace(draft, logits=refined_logits(block, head, prepared, draft.tokens, 1.0))


def of_the_seed(draft, head, block):
    return replace(draft, logits=block.base_logits)


@pytest.mark.property("P6")
@pytest.mark.parametrize(("change", "passes"), [(recomputed, 1), (recomputed, 2), (of_the_seed, 2)])
def test_the_law_of_another_tensor_is_caught(tabular, change, passes):
    score, _ = run(tabular, JacobiSolver(passes), change)
    assert score > 10


def test_at_the_fixed_point_recomputing_is_harmless(tabular):
    score, _ = run(tabular, JacobiSolver(DRAFTS), recomputed)
    assert abs(score) < 4.5


@pytest.mark.property("P6")
def test_greedy_drafts_are_lossless_under_the_delta_rule(tabular):
    head, block, target = tabular(ROWS)
    generator = torch.Generator().manual_seed(23)
    draft = JacobiSolver(2).propose(block, head, 0.0, None)
    found = DeltaVerifier().verify(draft, target_logits(target, draft.tokens), 1.0, generator)
    output = completed(target, draft.tokens, found, generator)
    assert abs(z_score(target, output)) < 4.5


def test_shared_noise_gains_by_passes_and_fresh_noise_does_not(tabular):
    accepted = {
        (noise, passes): run(tabular, JacobiSolver(passes, noise=noise))[1]
        for noise in ("shared", "fresh")
        for passes in (1, 3)
    }
    assert accepted["shared", 3] > accepted["shared", 1] + 0.1
    assert accepted["fresh", 3] < accepted["shared", 1]
