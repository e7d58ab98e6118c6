"""P5 (eq. 13): the L1 loss is twice the total variation, which is the verifier's rejection rate."""

from __future__ import annotations

import math

import pytest
import torch

from xpress_exp.objective import l1_distance
from xpress_exp.types import Proposal
from xpress_exp.verifier import RejectionVerifier

ROWS = 40_000


@pytest.mark.property("P5")
def test_p05_l1_is_twice_the_total_variation_with_its_gradient() -> None:
    torch.manual_seed(0)
    logits = torch.randn(200, 7, dtype=torch.float64, requires_grad=True)
    p = torch.softmax(2 * torch.randn(200, 7, dtype=torch.float64), -1)
    l1 = l1_distance(torch.log_softmax(logits, -1), p, p.new_zeros(200))
    variation = 1 - torch.minimum(torch.softmax(logits, -1), p).sum(-1)
    torch.testing.assert_close(l1, 2 * variation, rtol=1e-12, atol=1e-12)
    (of_l1,) = torch.autograd.grad(l1.sum(), logits, retain_graph=True)
    (of_variation,) = torch.autograd.grad(variation.sum(), logits)
    torch.testing.assert_close(of_l1, 2 * of_variation, rtol=1e-10, atol=1e-12)


@pytest.mark.property("P5")
@pytest.mark.parametrize("seed", range(4))
def test_p05_the_verifier_accepts_what_the_l1_loss_says(seed: int) -> None:
    """Binomial test: acceptance of q-drafts is 1 - ||q - p||_1 / 2."""
    generator = torch.Generator().manual_seed(seed)
    p_logits, q_logits = 1.5 * torch.randn(2, 5, generator=generator)
    p, q = p_logits.double().softmax(-1), q_logits.double().softmax(-1)
    rate = 1 - float(l1_distance(q.log(), p, p.new_zeros(()))) / 2
    tokens = torch.multinomial(q.expand(ROWS, -1), 1, generator=generator)
    draft = Proposal(tokens, q_logits.expand(ROWS, 1, 5))
    found = RejectionVerifier().verify(draft, p_logits.expand(ROWS, 2, 5), 1.0, generator)
    share = float(found.num_accepted.double().mean())
    assert 0.1 < rate < 0.9
    assert abs(share - rate) < 4.5 * math.sqrt(rate * (1 - rate) / ROWS)
