"""P10: a head whose readout is zero is the bare drafter, and learns through its readout first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from xpress_exp.head import NoHead
from xpress_exp.objective import CoTrainObjective
from xpress_exp.solver import JacobiSolver, ParallelSolver, SequentialSolver
from xpress_exp.types import BlockTargets

VOCAB = 7
SOLVERS = [
    SequentialSolver(),
    ParallelSolver(),
    JacobiSolver(3),
    JacobiSolver(3, seed="argmax"),
    JacobiSolver(2, noise="last", seed="argmax"),
]


def silent(make_case: Callable[..., Any], head_name: str, convention: str) -> Any:
    """All weights noise except a readout of zero."""
    case = make_case(head_name, convention, vocab=VOCAB, rows=3)
    with torch.no_grad():
        case.head.readout.zero_()
    return case


@pytest.mark.property("P10")
def test_p10_logits_and_drafts_are_those_of_the_bare_drafter(
    make_case: Callable[..., Any], head_name: str, convention: str
) -> None:
    """Bit for bit; drafts at temperature 0 and, under the same noise, at temperature 1."""
    case = silent(make_case, head_name, convention)
    block = case.block
    bare = NoHead(case.head.dims, torch.zeros(VOCAB, 6))
    logits = case.plain_logits(torch.randint(VOCAB, (1, 4)))
    assert torch.equal(logits, block.base_logits[:1])
    for temperature in (0.0, 1.0):
        for solver in SOLVERS:
            found, expected = (
                solver.propose(block, head, temperature, torch.Generator().manual_seed(8))
                for head in (case.head, bare)
            )
            assert torch.equal(found.tokens, expected.tokens)
            assert temperature == 0 or torch.equal(found.logits, expected.logits)


@pytest.mark.parametrize("backward", ["fused", "autograd"])
@pytest.mark.property("P10")
def test_p10_the_loss_is_the_bare_one_and_its_gradient_reaches_the_readout_alone(
    make_case: Callable[..., Any], head_name: str, convention: str, backward: Any
) -> None:
    case = silent(make_case, head_name, convention)
    block, slots = case.block, case.block.slots
    shape = (3, slots.block_size)
    targets = BlockTargets(
        anchor=block.anchor,
        anchor_previous=block.anchor,
        labels=torch.randint(VOCAB, shape),
        previous_tokens=torch.randint(VOCAB, shape),
        weights=slots.decay_weights(4.0).expand(shape),
        target_hidden=torch.randn(*shape, 6, dtype=torch.float64),
    )
    lm_head = torch.randn(VOCAB, 6, dtype=torch.float64)
    off = {"start": 0.0, "end": 0.0, "schedule": "constant"}
    objective = CoTrainObjective(0.1, 0.9, 4.0, off, 0.0, 1, 2, backward)

    def loss(head: Any) -> torch.Tensor:
        arguments = (lm_head, None, targets, slots, 0.0, targets.weights.sum())
        return objective(block.hidden, head, *arguments).total

    total = loss(case.head)
    # Without gradients the loss is always taken as written; the fast way is compared with itself.
    with torch.set_grad_enabled(backward == "fused"):
        assert torch.equal(total.detach(), loss(NoHead(case.head.dims, lm_head)).detach())
    total.backward()
    moved = {
        name for name, p in case.head.named_parameters() if p.grad is not None and p.grad.any()
    }
    assert moved == {"readout"}
