"""Rejection sampling: acceptance, residual law and edge cases against closed forms."""

from __future__ import annotations

import math

import pytest
import torch

from xpress_exp.types import Proposal
from xpress_exp.verifier import RejectionVerifier
from xpress_exp.verifier.contract import verify_chain

ROWS = 40_000


def repeated(values, rows=ROWS):
    return torch.tensor(values).expand(rows, *torch.tensor(values).shape)


def sampled(q_logits, generator, rows=ROWS, vocab_ids=None):
    """Proposal of one token per row drawn from softmax(q_logits)."""
    law = torch.tensor(q_logits).softmax(-1)
    index = torch.multinomial(law.expand(rows, -1), 1, generator=generator)
    tokens = index if vocab_ids is None else vocab_ids[index]
    return Proposal(tokens, repeated([q_logits], rows), vocab_ids)


def first_token(draft, found):
    accepted = found.num_accepted > 0
    return torch.where(accepted, draft.tokens[:, 0], found.next_token)


def z_score(tokens, law):
    expected = len(tokens) * law.double()
    counts = torch.bincount(tokens, minlength=len(law)).double()
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    return (chi_square - (len(law) - 1)) / math.sqrt(2 * (len(law) - 1))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_output_law_and_the_acceptance_are_those_of_the_theory(temperature):
    """Output p; acceptance sum min(p, q) = 1 - TV (eq. 13)."""
    generator = torch.Generator().manual_seed(0)
    target = [[0.4, -1.0, 1.3, 0.0], [1.0, 0.0, -1.0, 2.0]]
    draft = sampled([1.0, 0.5, -0.5, 0.2], generator)
    found = RejectionVerifier().verify(draft, repeated(target), temperature, generator)
    p = (torch.tensor(target[0]) / temperature).softmax(-1)
    q = draft.logits[0, 0].softmax(-1)
    assert abs(z_score(first_token(draft, found), p)) < 4.5
    rate = float(torch.minimum(p, q).sum())
    share = float(found.num_accepted.double().mean())
    assert abs(share - rate) < 4.5 * math.sqrt(rate * (1 - rate) / ROWS)
    bonus = (torch.tensor(target[1]) / temperature).softmax(-1)
    assert abs(z_score(found.next_token[found.num_accepted == 1], bonus)) < 4.5


def test_replacements_come_only_from_where_the_target_exceeds_the_draft():
    generator = torch.Generator().manual_seed(1)
    draft = sampled([1.0, 0.5, -0.5, 0.2], generator)
    target = [[0.4, -1.0, 1.3, 0.9], [0.0, 0.0, 0.0, 0.0]]
    found = RejectionVerifier().verify(draft, repeated(target), 1.0, generator)
    p, q = torch.tensor(target[0]).softmax(-1), draft.logits[0, 0].softmax(-1)
    residual = (p - q).clamp_min(0)
    replaced = found.next_token[found.num_accepted == 0]
    support = residual > 0
    assert int(support.sum()) == 2
    assert set(replaced.tolist()) == set(support.nonzero()[:, 0].tolist())
    law = residual[support] / residual.sum()
    position = support.cumsum(0)[replaced] - 1
    assert abs(z_score(position, law)) < 4.5


def test_equal_laws_accept_everything():
    generator = torch.Generator().manual_seed(2)
    draft = sampled([0.3, -0.7, 1.1], generator)
    target = [[0.3, -0.7, 1.1], [0.0, 0.0, 0.0]]
    found = RejectionVerifier().verify(draft, repeated(target), 1.0, generator)
    assert bool((found.num_accepted == 1).all())


def test_a_token_the_draft_law_excludes_is_rejected_and_equal_laws_fall_back_to_the_target():
    law = torch.tensor([0.5, 0.5, 0.0])
    draft, target = law.expand(2000, 1, 3), law.expand(2000, 2, 3)
    tokens = torch.full((2000, 1), 2)
    found = verify_chain(tokens, draft, target, torch.Generator().manual_seed(3))
    assert not found.num_accepted.any()
    assert set(found.next_token.tolist()) == {0, 1}


def test_a_reduced_draft_vocabulary_has_no_mass_outside():
    generator = torch.Generator().manual_seed(4)
    ids = torch.tensor([3, 1])
    draft = sampled([0.8, -0.3], generator, vocab_ids=ids)
    target = [[0.4, -1.0, 1.3, 0.9, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]]
    found = RejectionVerifier().verify(draft, repeated(target), 1.0, generator)
    p = torch.tensor(target[0]).softmax(-1)
    assert abs(z_score(first_token(draft, found), p)) < 4.5
    q = torch.zeros(5)
    q[ids] = torch.tensor([0.8, -0.3]).softmax(-1)
    rate = float(torch.minimum(p, q).sum())
    share = float(found.num_accepted.double().mean())
    assert abs(share - rate) < 4.5 * math.sqrt(rate * (1 - rate) / ROWS)


def test_acceptance_counts_equal_a_naive_loop_with_the_same_coins():
    generator = torch.Generator().manual_seed(5)
    p = torch.rand(50, 5, 4, generator=generator).softmax(-1)
    q = (2 * torch.rand(50, 4, 4, generator=generator)).softmax(-1)
    tokens = torch.randint(4, (50, 4), generator=generator)
    found = verify_chain(tokens, q, p, torch.Generator().manual_seed(6))
    coins = torch.rand(50, 4, generator=torch.Generator().manual_seed(6))
    for row in range(50):
        count = 0
        for k in range(4):
            x = tokens[row, k]
            if not coins[row, k] < p[row, k, x] / q[row, k, x]:
                break
            count += 1
        assert found.num_accepted[row].item() == count


def test_a_point_mass_and_temperature_zero_are_refused():
    tokens, target = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 2, 3)
    with pytest.raises(ValueError, match=r"needs a sampled draft .* use verifier=delta"):
        RejectionVerifier().verify(Proposal(tokens, None), target, 1.0, None)
    with pytest.raises(ValueError, match="needs temperature > 0"):
        RejectionVerifier().verify(Proposal(tokens, torch.zeros(1, 1, 3)), target, 0.0, None)
