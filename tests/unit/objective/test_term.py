"""Single-position losses: closed forms and eq. 13 (P5)."""

from __future__ import annotations

import math

import torch

from xpress_exp.objective import cross_entropy, l1_distance


def test_by_hand() -> None:
    law = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    log_draft = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64).log()
    assert math.isclose(cross_entropy(log_draft, torch.tensor(2)).item(), math.log(2))
    none = torch.zeros((), dtype=torch.float64)
    assert math.isclose(l1_distance(log_draft, law, none).item(), 0.5)


def test_eq_13_and_its_gradient() -> None:
    torch.manual_seed(0)
    logits = torch.randn(50, 9, dtype=torch.float64, requires_grad=True)
    law = torch.softmax(2 * torch.randn(50, 9, dtype=torch.float64), -1)
    distance = l1_distance(torch.log_softmax(logits, -1), law, law.new_zeros(50))
    overlap = torch.minimum(torch.softmax(logits, -1), law).sum(-1)
    torch.testing.assert_close(distance, 2 * (1 - overlap), rtol=1e-12, atol=1e-12)
    (first,) = torch.autograd.grad(distance.sum(), logits, retain_graph=True)
    (second,) = torch.autograd.grad(-2 * overlap.sum(), logits)
    torch.testing.assert_close(first, second, rtol=1e-10, atol=1e-12)


def test_disjoint_and_equal_laws_are_the_extremes() -> None:
    one_hot = torch.tensor([1.0, 0.0]).log()
    zero = torch.zeros(())
    assert l1_distance(one_hot, torch.tensor([0.0, 1.0]), zero).item() == 2.0
    assert l1_distance(one_hot, torch.tensor([1.0, 0.0]), zero).item() == 0.0
    # All of the target's mass on tokens that cannot be drafted.
    assert l1_distance(one_hot, torch.zeros(2), torch.ones(())).item() == 2.0
