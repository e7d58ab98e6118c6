"""The GRU head against the GRU equations, and its two slot conventions."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import silu

from xpress_exp.head import GRUHead
from xpress_exp.types import ModelDims, SlotConvention, SlotMap


def naive_gru(head, inputs):
    """States after each input [m, H] by the gate equations (r, z, n order of torch)."""
    state = torch.zeros(head.prefix_gru.hidden_size, dtype=torch.float64)
    states = []
    for x in inputs:
        from_x = (head.prefix_gru.weight_ih_l0 @ x).chunk(3)
        from_h = (head.prefix_gru.weight_hh_l0 @ state).chunk(3)
        reset, update = (torch.sigmoid(from_x[i] + from_h[i]) for i in (0, 1))
        new = torch.tanh(from_x[2] + reset * from_h[2])
        state = (1 - update) * new + update * state
        states.append(state)
    return states


@pytest.mark.parametrize("prefix", [0, 1, 2])
@pytest.mark.parametrize(("convention", "first"), [("fill_in", 1), ("shift", 0)])
def test_code_matches_the_equations(make_head, block, embedding, convention, first, prefix):
    head = make_head(GRUHead, convention, rank=4, gru_hidden_size=3, pure_draft_prefix_len=prefix)
    hidden, tokens = block
    z = head.code(hidden, tokens)
    for n in range(3):
        states = naive_gru(head, embedding[tokens[n, first:]])
        for k in range(5):
            if k < first + prefix:
                assert not z[n, k].any()
                continue
            joint = torch.cat([hidden[n, k], states[k - first]])
            expected = silu(head.mid_proj.weight @ joint)
            torch.testing.assert_close(z[n, k], expected, rtol=0, atol=1e-12)


def test_both_conventions_give_a_drafted_token_the_same_code(make_head, block):
    fill_in, shift = (
        make_head(GRUHead, convention, rank=4, gru_hidden_size=3)
        for convention in ("fill_in", "shift")
    )
    shift.load_state_dict(fill_in.state_dict())
    hidden, tokens = block
    aligned = (
        torch.cat([hidden[:, 1:], hidden[:, :1]], 1),
        torch.cat([tokens[:, 1:], tokens[:, :1]], 1),
    )
    torch.testing.assert_close(
        fill_in.code(hidden, tokens)[:, 1:], shift.code(*aligned)[:, :4], rtol=0, atol=1e-12
    )


def test_the_token_before_the_anchor_never_enters_the_gru(make_head, block):
    head = make_head(GRUHead, rank=4, gru_hidden_size=3, pure_draft_prefix_len=0)
    hidden, tokens = block
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 1) % 11
    assert torch.equal(head.code(hidden, tokens), head.code(hidden, changed))


def test_the_embedding_is_neither_parameter_nor_state(make_head):
    head = make_head(GRUHead, rank=4, gru_hidden_size=3)
    assert sorted(head.state_dict()) == sorted(name for name, _ in head.named_parameters())
    assert all(p.shape != (11, 6) for p in head.parameters())


def test_it_has_the_published_number_of_parameters():
    dims = ModelDims(4096, 151936, 151936, SlotMap(SlotConvention.SHIFT, 16))
    with torch.device("meta"):
        head = GRUHead(dims, torch.empty(151936, 4096), rank=256, gru_hidden_size=1024)
    assert sum(p.numel() for p in head.parameters()) == 55_934_976


def test_a_prefix_that_leaves_nothing_to_correct_is_refused(make_dims, embedding):
    with pytest.raises(ValueError, match=r"head.pure_draft_prefix_len=4"):
        GRUHead(make_dims(), embedding, 4, gru_hidden_size=3, pure_draft_prefix_len=4)
