"""The enumeration itself against closed forms: what is exact here must be known to be exact."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from .cells import cells
from .toy import tabular


@pytest.mark.parametrize("vocab", [2, 3])
def test_cells_of_one_context_have_the_softmax_as_their_shares(vocab: int) -> None:
    logits = torch.tensor([[0.3, -1.2, 2.0][:vocab]], dtype=torch.float64)
    noise, shares = cells(logits)
    order = (logits + noise).argmax(-1)
    law = torch.zeros(vocab, dtype=torch.float64).index_add_(0, order, shares)
    torch.testing.assert_close(law, logits[0].softmax(-1), rtol=0, atol=1e-15)


def test_cells_of_two_contexts_agree_with_a_quadrature() -> None:
    """P(argmax of both) over a fine grid of the simplex, the only other way to know it."""
    contexts = torch.tensor([[0.3, -1.2, 1.0], [-0.5, 0.9, 0.1]], dtype=torch.float64)
    noise, shares = cells(contexts)
    joint = torch.zeros(3, 3, dtype=torch.float64)
    first, second = (contexts[:, None] + noise).argmax(-1)
    joint.index_put_((first, second), shares, accumulate=True)
    steps = 1200
    i, j = torch.meshgrid(torch.arange(steps), torch.arange(steps), indexing="ij")
    inside = i + j < steps - 1
    a, b = ((x[inside].double() + 1 / 3) / steps for x in (i, j))
    eps = -torch.stack([a, b, 1 - a - b], -1).log()
    first, second = (contexts[:, None] + eps).argmax(-1)
    grid = torch.bincount(3 * first + second, minlength=9).reshape(3, 3) / len(a)
    torch.testing.assert_close(joint, grid.double(), rtol=0, atol=3e-3)
    assert int((joint > 0).sum()) > 3


def test_the_law_of_plain_sampling_is_the_product_of_its_conditionals() -> None:
    toy = tabular()
    expected = []
    for text in itertools.product(range(3), repeat=4):
        laws = [
            toy.target[k][sum(t * 3 ** (k - 1 - i) for i, t in enumerate(text[:k]))]
            for k in range(4)
        ]
        expected.append(
            math.prod(float(law.softmax(-1)[t]) for law, t in zip(laws, text, strict=True))
        )
    torch.testing.assert_close(
        toy.law(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-15
    )
