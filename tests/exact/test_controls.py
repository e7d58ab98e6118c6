"""Known mistakes, exactly: each moves the output law by the total variation that stands here. A
suite that cannot see them would prove nothing by its zeros (see test_lossless.py).

The figures belong to these toy models; they say that a mistake shows, not how much it costs a real
model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from xpress_exp.law import Truncation
from xpress_exp.solver import JacobiSolver
from xpress_exp.types import Proposal
from xpress_exp.verifier import DeltaVerifier, RejectionVerifier

from .output import Drafts, drafts_of, output_law, variation
from .toy import Toy, tabular

EXACT = 1e-12


def with_law(drafts: Drafts, logits: Any) -> Any:
    """The same tokens under another law."""
    rows = logits.expand(len(drafts.shares), -1, -1)
    return replace(drafts, proposal=replace(drafts.proposal, logits=rows))


def error(toy: Toy, drafts: Drafts, verifier: Any = None) -> float:
    law = output_law(toy, drafts, verifier or RejectionVerifier())
    return variation(law, toy.law())


def shows(found: float, recorded: float) -> None:
    assert found > 1e-3
    assert found == pytest.approx(recorded, rel=0.01)


@pytest.mark.property("P6")
@pytest.mark.parametrize(("passes", "recorded"), [(1, 0.2364), (2, 0.1033), (3, 0.0)])
def test_the_law_recomputed_on_the_final_tokens(passes: int, recorded: float) -> None:
    """It is right only at the fixed point, which N passes always reach."""
    toy = tabular()
    drafts = drafts_of(toy, JacobiSolver(passes))
    found = error(toy, with_law(drafts, toy.refined(drafts.proposal.tokens)))
    if passes == toy.num_drafts:
        assert found < EXACT
    else:
        shows(found, recorded)


@pytest.mark.property("P6")
@pytest.mark.parametrize(("passes", "recorded"), [(1, 0.1149), (2, 0.1414)])
def test_the_law_of_the_seed(passes: int, recorded: float) -> None:
    toy = tabular()
    drafts = drafts_of(toy, JacobiSolver(passes))
    found = error(toy, with_law(drafts, toy.block.base_logits))
    shows(found, recorded)


@pytest.mark.property("P12d")
def test_stopping_where_the_drawn_tokens_look_sure() -> None:
    """One pass where its tokens are likely, else three: the choice sees later tokens' noise."""
    toy = tabular()
    once, often = (drafts_of(toy, JacobiSolver(k)) for k in (1, 3))
    law = once.proposal.logits.softmax(-1)
    confidence = law.gather(2, once.proposal.tokens[..., None])[..., 0].mean(1)
    stop = confidence > 0.6
    assert 0.1 < float(once.shares[stop].sum()) < 0.9
    mixed = Proposal(
        torch.where(stop[:, None], once.proposal.tokens, often.proposal.tokens),
        torch.where(stop[:, None, None], once.proposal.logits, often.proposal.logits),
    )
    found = error(toy, Drafts(mixed, once.shares))
    shows(found, 0.00378)


@pytest.mark.property("P6")
def test_greedy_drafts_weighed_by_a_softmax() -> None:
    """They have no such law: a point mass needs the delta rule."""
    toy = tabular()
    greedy = JacobiSolver(2).propose(toy.rows(1), toy.head, 0.0, None)
    drafts = Drafts(greedy, torch.ones(1, dtype=torch.float64))
    assert error(toy, drafts, DeltaVerifier()) < EXACT
    found = error(toy, with_law(drafts, toy.refined(greedy.tokens)))
    shows(found, 0.2275)


@pytest.mark.property("P6")
def test_sampled_drafts_under_the_delta_rule_lose_nothing_but_speed() -> None:
    """No mistake: drafts independent of the coins may be anything. Only acceptance suffers, so the
    verifier refuses them; here it is told that they are point masses."""
    toy = tabular()
    drafts = drafts_of(toy, JacobiSolver(2))
    blind = replace(drafts, proposal=replace(drafts.proposal, logits=None))
    assert error(toy, blind, DeltaVerifier()) < EXACT


@pytest.mark.property("P6")
@pytest.mark.parametrize(
    ("truncation", "recorded"), [(Truncation(2), 0.0421), (Truncation(None, 0.7), 0.0411)], ids=str
)
def test_the_law_before_truncation(truncation: Truncation, recorded: float) -> None:
    toy = tabular()
    filtered = toy.filtered(truncation, 1.0)
    drafts = drafts_of(filtered, JacobiSolver(3))
    assert error(filtered, drafts) < EXACT
    found = error(filtered, with_law(drafts, toy.refined(drafts.proposal.tokens)))
    shows(found, recorded)


@pytest.mark.property("P6")
def test_a_target_that_is_not_truncated_like_the_drafts() -> None:
    """Verified without the filters, the output follows the unfiltered law: but another."""
    toy, truncation = tabular(), Truncation(2)
    drafts = drafts_of(toy.filtered(truncation, 1.0), JacobiSolver(3))
    law = output_law(toy, drafts, RejectionVerifier())
    assert variation(law, toy.law()) < EXACT
    found = variation(law, toy.filtered(truncation, 1.0).law())
    shows(found, 0.2219)
