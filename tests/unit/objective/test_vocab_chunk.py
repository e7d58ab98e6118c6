"""Chunked gradients against plain autograd, for losses as awkward as autograd allows."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from xpress_exp.objective import chunked_loss

CLOSE: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}


def awkward(hidden: Tensor, first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
    """Gradients that autograd returns expanded (first) or as one tensor for two (both)."""
    shared = (first + second).sum() * len(hidden)
    return shared + (hidden @ weight).pow(2).sum() + first.sum() * hidden.mean(2).sum()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 20])
def test_equals_autograd(size: int) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(7, 3, 4, dtype=torch.float64, requires_grad=True)
    first, second = (torch.randn(4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    weight = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    unused = torch.randn(2, dtype=torch.float64, requires_grad=True)
    frozen = torch.randn(2, dtype=torch.float64)

    def step(chunk: Tensor, blocks: slice) -> tuple[Tensor, dict[str, Tensor]]:
        assert torch.equal(chunk, hidden[blocks])
        return awkward(chunk, first, second, weight), {"rows": torch.tensor(len(chunk))}

    sources = [first, second, weight, unused, frozen]
    total, statistics = chunked_loss(step, hidden, sources, size)
    assert statistics == {"rows": 7}
    expected = awkward(hidden, first, second, weight)
    torch.testing.assert_close(total, expected, **CLOSE)
    (3.5 * total).backward()
    wanted = torch.autograd.grad(3.5 * expected, [hidden, first, second, weight])
    for tensor, gradient in zip([hidden, first, second, weight], wanted, strict=True):
        torch.testing.assert_close(tensor.grad, gradient, **CLOSE)
    # DDP waits for a gradient of every parameter, also of one without effect.
    assert unused.grad is not None and not unused.grad.any()


def test_frozen_hidden_states() -> None:
    hidden = torch.ones(3, 1, 2, dtype=torch.float64)
    weight = torch.ones(2, dtype=torch.float64, requires_grad=True)
    total, _ = chunked_loss(lambda chunk, _: ((chunk @ weight).sum(), {}), hidden, [weight], 2)
    total.backward()
    assert weight.grad is not None and weight.grad.tolist() == [3.0, 3.0]


def test_no_chunk_outlives_its_turn() -> None:
    """At most one chunk's graph exists: earlier logits are gone when the next are made."""
    alive: list[weakref.ref[Tensor]] = []

    def step(chunk: Tensor, _blocks: slice) -> tuple[Tensor, dict[str, Tensor]]:
        assert not any(reference() is not None for reference in alive)
        logits = chunk @ torch.ones(2, 50)
        alive.append(weakref.ref(logits))
        return logits.exp().sum(), {}

    hidden = torch.ones(6, 1, 2, requires_grad=True)
    chunked_loss(step, hidden, [], 2)
    assert len(alive) == 3
