"""The absent head changes nothing and owns nothing."""

from __future__ import annotations

import torch

from xpress_exp.head import NoHead


def test_corrected_logits_are_the_base_logits(make_head, block):
    head = make_head(NoHead)
    base = torch.randn(3, 5, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z = head.code(*block)
    assert z.shape == (3, 5, 0)
    assert torch.equal(head.correct(base, z), base)


def test_it_has_no_parameters_and_no_state(make_head):
    head = make_head(NoHead)
    assert list(head.parameters()) == []
    assert head.state_dict() == {}
    assert head.readout.shape == (9, 0)
