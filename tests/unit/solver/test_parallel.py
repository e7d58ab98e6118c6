"""The parallel solver is one pass from the base draft under the same noise."""

from __future__ import annotations

import pytest
import torch

from xpress_exp.head import MarkovHead, NoHead, XPressHead
from xpress_exp.solver import ParallelSolver
from xpress_exp.solver.gumbel import gumbel_like


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_it_is_one_pass_on_the_base_draft(make_case, temperature):
    head, block = make_case(MarkovHead, "shift", rank=3)
    noise = gumbel_like(block.base_logits, torch.Generator().manual_seed(1)) * (temperature > 0)
    divisor = temperature or 1.0
    seed = (block.base_logits / divisor + noise).argmax(-1)
    previous = torch.cat([block.anchor[:, None], seed[:, :-1]], 1)
    logits = (block.base_logits + head.token_table[previous] @ head.readout.T) / divisor
    found = ParallelSolver().propose(block, head, temperature, torch.Generator().manual_seed(1))
    assert torch.equal(found.tokens, (logits + noise).argmax(-1))
    assert found.num_passes == 1
    if temperature:
        torch.testing.assert_close(found.logits, logits, rtol=0, atol=1e-12)
    else:
        assert found.logits is None


def test_without_a_head_it_is_the_base_draft(make_case):
    head, block = make_case(NoHead)
    found = ParallelSolver(num_iterations=3).propose(
        block, head, 0.5, torch.Generator().manual_seed(2)
    )
    noise = gumbel_like(block.base_logits, torch.Generator().manual_seed(2))
    assert torch.equal(found.tokens, (block.base_logits / 0.5 + noise).argmax(-1))
    assert torch.equal(found.logits, block.base_logits / 0.5)
    assert found.num_passes == 0


@pytest.mark.parametrize("anchor_prev", ["anchor", "predecessor"])
def test_slot_zero_reads_what_the_head_asks_for(make_case, anchor_prev):
    head, block = make_case(XPressHead, rank=3, anchor_prev=anchor_prev)
    read, plain = {}, head.code_from

    def spy(prepared, tokens):
        read["tokens"] = tokens
        return plain(prepared, tokens)

    head.code_from = spy
    ParallelSolver().propose(block, head, 0.0, None)
    first = block.anchor if anchor_prev == "anchor" else block.anchor_previous
    seed = block.base_logits.argmax(-1)
    expected = torch.cat([first[:, None], block.anchor[:, None], seed[:, :-1]], 1)
    assert torch.equal(read["tokens"], expected)
