"""P2 (Theorem 1): from any seed, position k is exact after k passes. P3: the fixed point is unique.

Truth is drafting one token at a time with whole passes of the plain head."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from xpress_exp.head import XPressHead
from xpress_exp.solver import JacobiSolver
from xpress_exp.solver.gumbel import gumbel_like

DRAFTS, VOCAB = 4, 4
SEEDS = torch.tensor(list(product(range(VOCAB), repeat=DRAFTS)))


class SeededJacobi(JacobiSolver):
    """Row r of the block starts from SEEDS[r]."""

    def _seed(self, *_arguments: Any) -> Tensor:
        return SEEDS


def with_ties(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Coarse logits, so that many rows have several largest tokens."""
    correct = case.head.correct
    monkeypatch.setattr(case.head, "correct", lambda base, z: (correct(base, z) / 2).round())


@pytest.mark.property("P2")
@pytest.mark.parametrize("ties", [False, True])
def test_p02_position_k_is_exact_after_k_passes_from_any_seed(
    make_case: Callable[..., Any],
    head_name: str,
    convention: str,
    ties: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = make_case(head_name, convention, vocab=VOCAB, rows=len(SEEDS))
    if ties:
        with_ties(case, monkeypatch)
        logits = case.plain_logits(SEEDS)
        assert int(((logits == logits.amax(-1, keepdim=True)).sum(-1) > 1).sum()) >= 64
    truth = case.one_by_one().expand(len(SEEDS), DRAFTS)
    for passes in range(1, DRAFTS + 1):
        found = SeededJacobi(passes, stop="never").propose(case.block, case.head, 0.0, None)
        assert torch.equal(found.tokens[:, :passes], truth[:, :passes])
    assert torch.equal(found.tokens, truth)
    stopped = SeededJacobi(10).propose(case.block, case.head, 0.0, None)
    assert torch.equal(stopped.tokens, truth)
    assert stopped.num_passes <= DRAFTS + 1  # the last one only finds that nothing changes


class SeedDependentSummary(XPressHead):
    """The global summary is computed again in every pass, from the tokens of the last one."""

    def code_from(self, prepared: Tensor, previous_tokens: Tensor) -> Tensor:
        summary = self._token_part(previous_tokens).mean(1, keepdim=True)
        return super().code_from(prepared + 8 * summary, previous_tokens)


@pytest.mark.parametrize(("kind", "holds"), [(XPressHead, True), (SeedDependentSummary, False)])
def test_p02_fails_for_a_summary_of_the_drafts(
    make_case: Callable[..., Any], kind: Callable[..., XPressHead], holds: bool
) -> None:
    """Negative control, and the same loop with the head as it is."""
    case = make_case(partial(kind, rank=3), "fill_in", vocab=VOCAB, rows=len(SEEDS))
    settled = []
    for passes in range(1, DRAFTS + 1):
        found = SeededJacobi(passes, stop="never").propose(case.block, case.head, 0.0, None)
        settled.append(len(found.tokens[:, :passes].unique(dim=0)) == 1)
    assert all(settled) == holds


@pytest.mark.property("P3")
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_p03_exactly_one_block_is_a_fixed_point(
    make_case: Callable[..., Any], head_name: str, convention: str, temperature: float
) -> None:
    """All V^N blocks, at temperature 0 and under 100 fixed Gumbel tables."""
    case = make_case(head_name, convention, vocab=VOCAB)
    read = torch.cat([case.block.anchor.expand(len(SEEDS), 1), SEEDS[:, :-1]], 1)
    with torch.no_grad():
        logits = case.plain_logits(read) / (temperature or 1.0)
    different = set()
    for number in range(100 if temperature else 1):
        noise = gumbel_like(logits[0], torch.Generator().manual_seed(number)) * (temperature > 0)
        fixed = SEEDS[((logits + noise).argmax(-1) == SEEDS).all(1)]
        assert len(fixed) == 1
        found = JacobiSolver(DRAFTS).propose(
            case.block, case.head, temperature, torch.Generator().manual_seed(number)
        )
        assert torch.equal(found.tokens, fixed)
        different.add(tuple(fixed[0].tolist()))
    assert len(different) > (20 if temperature else 0)
