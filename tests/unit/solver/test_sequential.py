"""Sequential drafting against a naive loop that re-runs the whole head for every token."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from xpress_exp.head import GRUHead, MarkovHead, NoHead, XPressHead
from xpress_exp.solver import SequentialSolver
from xpress_exp.solver.gumbel import gumbel_like

HEADS = [
    (MarkovHead, {"rank": 3}),
    (MarkovHead, {"rank": 3, "variant": "rnn"}),
    (GRUHead, {"rank": 3, "gru_hidden_size": 2}),
    (XPressHead, {"rank": 3}),
]


def naive(head, block, temperature, noise):
    """x_1..x_N and their scaled logits, one full pass of the plain head per token."""
    drafts, laws = [], []
    before = [block.anchor] if block.slots.first_slot == 0 else [block.anchor, block.anchor]
    for position in range(block.slots.num_draft_tokens):
        read = [*before, *drafts]
        read = torch.stack(read + [read[-1]] * (block.slots.block_size - len(read)), 1)
        slot = position + block.slots.first_slot
        z = head.code(block.hidden, read[:, : block.slots.block_size])[:, slot]
        logits = block.base_logits[:, position] + z @ head.readout.T
        if temperature:
            logits = logits / temperature
        index = (logits + noise[:, position] if temperature else logits).argmax(-1)
        drafts.append(index if block.vocab_ids is None else block.vocab_ids[index])
        laws.append(logits)
    return torch.stack(drafts, 1), torch.stack(laws, 1)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("convention", ["fill_in", "shift"])
@pytest.mark.parametrize("vocab_ids", [None, torch.tensor([1, 3, 4])])
@pytest.mark.parametrize(("kind", "config"), HEADS)
def test_it_equals_the_naive_loop(make_case, kind, config, vocab_ids, convention, temperature):
    head, block = make_case(kind, convention, vocab=6, rows=3, vocab_ids=vocab_ids, **config)
    noise = gumbel_like(block.base_logits, torch.Generator().manual_seed(9))
    tokens, laws = naive(head, block, temperature, noise)
    generator = torch.Generator().manual_seed(9)
    found = SequentialSolver().propose(block, head, temperature, generator)
    assert torch.equal(found.tokens, tokens)
    assert found.num_passes == 4
    assert found.vocab_ids is block.vocab_ids
    if temperature:
        torch.testing.assert_close(found.logits, laws, rtol=0, atol=1e-10)
    else:
        assert found.logits is None


def test_unused_slots_are_not_drafted(make_case):
    head, block = make_case(XPressHead, "shift", rank=3)
    fewer = replace(
        block, slots=replace(block.slots, num_unused_slots=1), base_logits=block.base_logits[:, :3]
    )
    whole = SequentialSolver().propose(block, head, 0.0, None)
    part = SequentialSolver().propose(fewer, head, 0.0, None)
    assert torch.equal(part.tokens, whole.tokens[:, :3])
    assert part.num_passes == 3


def test_without_a_head_it_is_the_base_draft(make_case):
    head, block = make_case(NoHead)
    found = SequentialSolver(num_iterations=5).propose(block, head, 0.0, None)
    assert torch.equal(found.tokens, block.base_logits.argmax(-1))
    assert found.num_passes == 0
