"""The rule for deterministic drafts: acceptance p(x), replacement p without x."""

from __future__ import annotations

import math

import pytest
import torch

from xpress_exp.types import Proposal
from xpress_exp.verifier import DeltaVerifier

ROWS = 40_000
TARGET = torch.tensor([[0.4, -1.0, 1.3, 0.0], [1.0, 0.0, -1.0, 2.0]])


def z_score(tokens, law):
    law = law / law.sum()
    keep = law > 0
    expected = len(tokens) * law[keep].double()
    counts = torch.bincount(tokens, minlength=len(law)).double()[keep]
    df = int(keep.sum()) - 1
    return (float(((counts - expected) ** 2 / expected).sum()) - df) / math.sqrt(2 * df)


@pytest.mark.parametrize("x", [0, 1, 2, 3])
def test_acceptance_replacement_and_bonus_laws(x):
    draft = Proposal(torch.full((ROWS, 1), x), None)
    generator = torch.Generator().manual_seed(x)
    found = DeltaVerifier().verify(draft, TARGET.expand(ROWS, 2, 4), 0.8, generator)
    p, bonus = (TARGET / 0.8).softmax(-1)
    rate, accepted = float(p[x]), found.num_accepted == 1
    share = float(accepted.double().mean())
    assert abs(share - rate) < 4.5 * math.sqrt(rate * (1 - rate) / ROWS)
    without = p.clone()
    without[x] = 0
    replaced = found.next_token[~accepted]
    assert x not in replaced.tolist()
    assert abs(z_score(replaced, without)) < 4.5
    assert abs(z_score(found.next_token[accepted], bonus)) < 4.5


def test_a_certain_token_is_always_accepted():
    certain = torch.tensor([[0.0, -torch.inf, -torch.inf]]).expand(500, 2, 3)
    draft = Proposal(torch.zeros(500, 1, dtype=torch.int64), None)
    found = DeltaVerifier().verify(draft, certain, 1.0, torch.Generator().manual_seed(0))
    assert bool((found.num_accepted == 1).all())
    assert not found.next_token.any()


def test_a_sampled_law_and_temperature_zero_are_refused():
    tokens, target = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 2, 3)
    with pytest.raises(ValueError, match=r"needs a point_mass draft .* use verifier=rejection"):
        DeltaVerifier().verify(Proposal(tokens, torch.zeros(1, 1, 3)), target, 1.0, None)
    with pytest.raises(ValueError, match="needs temperature > 0"):
        DeltaVerifier().verify(Proposal(tokens, None), target, 0.0, None)
