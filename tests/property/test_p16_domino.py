"""P16 (Domino): slots with and without shifted labels, a carried GRU state, a pure prefix."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from xpress_exp.head import GRUHead
from xpress_exp.solver import JacobiSolver, SequentialSolver
from xpress_exp.types import SlotConvention, SlotMap

BLOCK = 6


@pytest.mark.property("P16")
@pytest.mark.parametrize("shift_label", [True, False])
def test_p16_index_maps_with_and_without_shifted_labels(shift_label: bool) -> None:
    """Tokens numbered by position, anchor at 100. Domino shifts labels and leaves the last slot
    unused: slot j says 101 + j and reads 100 + j. Unshifted, slot j > 0 says 100 + j."""
    convention = SlotConvention.SHIFT if shift_label else SlotConvention.FILL_IN
    slots = SlotMap(convention, BLOCK, num_unused_slots=1 if shift_label else 0)
    said = (100 + slots.label_offsets())[slots.draft_slots].tolist()
    drafts = torch.arange(101, 101 + BLOCK)[None]
    read = slots.previous_tokens(torch.tensor([100]), drafts, torch.tensor([99]))[0]
    drafting = list(range(BLOCK - 1)) if shift_label else list(range(1, BLOCK))
    assert slots.num_draft_tokens == BLOCK - 1
    assert list(range(BLOCK))[slots.draft_slots] == drafting
    assert said == [101 + j if shift_label else 100 + j for j in drafting]
    assert read[slots.draft_slots].tolist() == [token - 1 for token in said]


@pytest.mark.property("P16")
@pytest.mark.parametrize("prefix", [0, 1, 2, 3])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_p16_carried_state_and_pure_prefix(
    make_case: Callable[..., Any], convention: str, prefix: int, temperature: float
) -> None:
    """Carrying the GRU state equals running it over the whole prefix again for every token (what
    the Jacobi passes do); the first `prefix` drafts have the drafter's own logits, bit for bit."""
    head = partial(GRUHead, rank=3, gru_hidden_size=4, pure_draft_prefix_len=prefix)
    case = make_case(head, convention, vocab=7)
    for seed in range(5):
        carried, again = (
            solver.propose(case.block, case.head, temperature, torch.Generator().manual_seed(seed))
            for solver in (SequentialSolver(), JacobiSolver(4, stop="never"))
        )
        assert torch.equal(carried.tokens, again.tokens)
        if temperature:
            torch.testing.assert_close(carried.logits, again.logits, rtol=0, atol=1e-12)
            base = case.block.base_logits / temperature
            for law in (carried.logits, again.logits):
                assert law is not None
                assert torch.equal(law[:, :prefix], base[:, :prefix])
                assert bool((law[:, prefix:] != base[:, prefix:]).any(-1).all())
