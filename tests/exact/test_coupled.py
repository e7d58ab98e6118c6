"""verifier=gumbel_coupled, exactly: under every noise the output is what plain sampling gives with
that noise, and over all noise it follows the target's law."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from xpress_exp.law import Truncation
from xpress_exp.solver import JacobiSolver, SequentialSolver
from xpress_exp.types import Proposal
from xpress_exp.verifier import GumbelCoupledVerifier

from .cells import Tables, cells, product_of
from .output import variation
from .toy import Toy, prefix_index, tabular

EXACT = 1e-12
SOLVERS = {
    "sequential": SequentialSolver(),
    **{f"jacobi{k}": JacobiSolver(k) for k in (0, 1, 2, 3)},
    "argmax seed": JacobiSolver(2, seed="argmax"),
    "last": JacobiSolver(2, noise="last"),
}


def all_noise(toy: Toy) -> tuple[Tensor, Tensor]:
    """One table [rows, N+1, V] per cell of everything that solver and verifier compare."""
    target = toy.target_contexts()
    drafted = zip(toy.solver_contexts(), target[:-1], strict=True)
    contexts = [*[torch.cat(pair) for pair in drafted], target[-1]]
    return product_of([cells(c) for c in contexts])


def plain(toy: Toy, noise: Tensor) -> Tensor:
    """Texts [rows, N+1] of plain sampling under the noise."""
    text = noise.new_zeros(len(noise), 0, dtype=torch.int64)
    for k, logits in enumerate(toy.target_contexts()):
        scores = logits[prefix_index(text, k, toy.vocab)] + noise[:, k]
        text = torch.cat([text, scores.argmax(-1, keepdim=True)], 1)
    return text


def verified(toy: Toy, proposal: Proposal, noise: Any) -> Any:
    target = toy.target_logits(proposal.tokens)
    return GumbelCoupledVerifier().verify(
        proposal, target, toy.temperature, noise, toy.block.truncation
    )


@pytest.mark.property("P8")
@pytest.mark.parametrize(
    "truncation", [Truncation(), Truncation(2), Truncation(None, 0.7)], ids=str
)
@pytest.mark.parametrize(("vocab", "drafts"), [(2, 3), (3, 2)])
def test_every_solver_commits_the_text_of_the_noise(
    vocab: int, drafts: int, truncation: Truncation
) -> None:
    toy = tabular(vocab, drafts).filtered(truncation, 0.8)
    table, shares = all_noise(toy)
    text = plain(toy, table)
    law = torch.zeros(vocab ** (drafts + 1), dtype=torch.float64)
    law.index_add_(0, prefix_index(text, drafts + 1, vocab), shares)
    assert variation(law, toy.law()) < EXACT
    for solver in SOLVERS.values():
        noise = Tables(table)
        proposal = solver.propose(toy.rows(len(shares)), toy.head, toy.temperature, noise)
        found = verified(toy, proposal, noise)
        for row_text, tokens, count, token in zip(
            text.tolist(),
            proposal.tokens.tolist(),
            found.num_accepted.tolist(),
            found.next_token.tolist(),
            strict=True,
        ):
            assert [*tokens[:count], token] == row_text[: count + 1]


def test_one_draft_is_accepted_with_the_odds_of_the_coupling() -> None:
    """P(equal argmax) = sum_v 1 / sum_u max(p_u / p_v, q_u / q_v), at least (1 - TV) / (1 + TV)."""
    draw = torch.Generator().manual_seed(4)
    for p, q in torch.randn(20, 2, 3, generator=draw, dtype=torch.float64).mul(1.5).softmax(-1):
        noise, shares = cells(torch.stack([p, q]).log())
        same = (p.log() + noise).argmax(-1) == (q.log() + noise).argmax(-1)
        ratio = torch.maximum(p / p[:, None], q / q[:, None])
        odds = float((1 / ratio.sum(-1)).sum())
        assert float(shares[same].sum()) == pytest.approx(odds, abs=EXACT)
        distance = variation(p, q)
        assert odds >= (1 - distance) / (1 + distance) - EXACT
