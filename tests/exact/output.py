"""The output law of one verified round, without sampling error.

All proposals come from enumerated noise. The verifier's own draws are found from outside: the odds
of an acceptance by bisection of the coin, the law of the next token from the weights that it hands
to torch.multinomial.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from xpress_exp.types import Proposal, Verification

from .cells import Tables, cells, product_of
from .toy import Toy, prefix_index


@dataclass(frozen=True)
class Drafts:
    """Every proposal that can come about and its probability [rows]."""

    proposal: Proposal
    shares: Tensor


def drafts_of(toy: Toy, solver: Any, contexts: Sequence[list[Tensor]] | None = None) -> Drafts:
    """All proposals of a solver. contexts: of each noise table that it asks for, in order; by
    default one table for everything."""
    asked = [toy.solver_contexts()] if contexts is None else contexts
    tables = [product_of([cells(c) for c in positions]) for positions in asked]
    rows = torch.cartesian_prod(*[torch.arange(len(s)) for _, s in tables]).reshape(-1, len(tables))
    columns = rows.unbind(1)
    noise = Tables(*[table[i] for (table, _), i in zip(tables, columns, strict=True)])
    shares = torch.stack([s[i] for (_, s), i in zip(tables, columns, strict=True)]).prod(0)
    return Drafts(solver.propose(toy.rows(len(rows)), toy.head, toy.temperature, noise), shares)


def merged(drafts: Drafts) -> Drafts:
    """Equal proposals as one row."""
    tokens, logits = drafts.proposal.tokens, drafts.proposal.logits
    assert logits is not None
    content = torch.cat([tokens.double(), logits.flatten(1)], 1)
    kept, group = content.unique(dim=0, return_inverse=True)
    shares = torch.zeros(len(kept), dtype=torch.float64).index_add_(0, group, drafts.shares)
    first = torch.full((len(kept),), len(content)).scatter_reduce_(
        0, group, torch.arange(len(content)), "amin"
    )
    return Drafts(replace(drafts.proposal, tokens=tokens[first], logits=logits[first]), shares)


class Examined:
    """A verifier whose coins are dictated and whose final draw is recorded."""

    def __init__(self, toy: Toy, verifier: Any, proposal: Proposal) -> None:
        self.toy, self.verifier, self.proposal = toy, verifier, proposal
        self.target = toy.target_logits(proposal.tokens)
        self.weights = torch.empty(0)

    def verify(self, coins: Tensor) -> Verification:
        def final_draw(weights: Tensor, *_: Any, **__: Any) -> Tensor:
            self.weights = weights / weights.sum(1, keepdim=True)
            return torch.zeros(len(weights), 1, dtype=torch.int64)

        truncation = self.toy.block.truncation
        with (
            mock.patch("torch.rand", return_value=coins),
            mock.patch("torch.multinomial", final_draw),
        ):
            return self.verifier.verify(
                self.proposal, self.target, self.toy.temperature, None, truncation
            )

    def odds(self, position: int) -> Tensor:
        """Share of the coins that accept draft `position` once all before it are accepted."""
        coins = torch.zeros(self.proposal.tokens.shape, dtype=torch.float64)
        low, high = coins[:, 0].clone(), coins[:, 0] + 1

        def accepts(coin: Tensor) -> Tensor:
            coins[:, position] = coin
            return self.verify(coins).num_accepted > position

        never, always = ~accepts(low), accepts(high.nextafter(low))
        for _ in range(60):
            middle = (low + high) / 2
            yes = accepts(middle)
            low, high = torch.where(yes, middle, low), torch.where(yes, high, middle)
        return torch.where(never, 0.0, torch.where(always, 1.0, low))


def output_law(toy: Toy, drafts: Drafts, verifier: Any) -> Tensor:
    """Law [V**(N+1)] of one verified round, completed by plain sampling."""
    rows = drafts if drafts.proposal.logits is None else merged(drafts)
    tokens, count = rows.proposal.tokens, toy.num_drafts
    examined, masses, reached = Examined(toy, verifier, rows.proposal), [], rows.shares
    for n in range(count + 1):
        coins = torch.zeros(tokens.shape, dtype=torch.float64)
        odds = torch.zeros_like(reached)
        if n < count:
            odds = examined.odds(n)
            coins[:, n] = 1 - 2.0**-53
        happens = reached * (1 - odds) > 0
        accepted = examined.verify(coins).num_accepted
        assert bool((accepted == n)[happens].all())
        mass = (reached * (1 - odds))[happens, None] * examined.weights[happens]
        place = prefix_index(tokens, n, toy.vocab)[happens]
        level = torch.zeros(toy.vocab**n, toy.vocab, dtype=torch.float64)
        masses.append(level.index_add_(0, place, mass).flatten())
        reached = reached * odds
    return toy.completed(masses)


def variation(first: Tensor, second: Tensor) -> float:
    """Total variation of two laws."""
    return 0.5 * float((first - second).abs().sum())
