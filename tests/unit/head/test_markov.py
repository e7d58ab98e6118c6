"""Markov heads against the formulas of DSpark, written out slot by slot."""

from __future__ import annotations

import pytest
import torch

from xpress_exp.head import MarkovHead
from xpress_exp.types import ModelDims, SlotConvention, SlotMap


def test_vanilla_looks_up_the_previous_token(make_head, block):
    head = make_head(MarkovHead, rank=4)
    z = head.code(*block)
    for n in range(3):
        for k in range(5):
            assert torch.equal(z[n, k], head.token_table[block[1][n, k]])


def test_gated_matches_its_formula(make_head, block):
    head = make_head(MarkovHead, rank=4, variant="gated")
    hidden, tokens = block
    z = head.code(hidden, tokens)
    weight, bias = head.gate_proj.weight, head.gate_proj.bias
    for n in range(3):
        for k in range(5):
            e = head.token_table[tokens[n, k]]
            gate = torch.sigmoid(weight @ torch.cat([hidden[n, k], e]) + bias)
            torch.testing.assert_close(z[n, k], gate * e, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("convention", "anchor_slot", "first"),
    [("fill_in", "skip", 1), ("fill_in", "read", 0), ("shift", "skip", 0)],
)
def test_rnn_matches_its_formula(make_head, block, convention, anchor_slot, first):
    head = make_head(MarkovHead, convention, rank=4, variant="rnn", rnn_anchor_slot=anchor_slot)
    hidden, tokens = block
    z = head.code(hidden, tokens)
    weight, bias = head.joint_proj.weight, head.joint_proj.bias
    assert torch.equal(z[:, :first], torch.zeros(3, first, 4, dtype=torch.float64))
    for n in range(3):
        state = torch.zeros(4, dtype=torch.float64)
        for k in range(first, 5):
            joint = torch.cat([state, head.token_table[tokens[n, k]], hidden[n, k]])
            g, c, o = (weight @ joint + bias).split(4)
            state = torch.sigmoid(g) * state + (1 - torch.sigmoid(g)) * torch.tanh(c)
            torch.testing.assert_close(z[n, k], torch.tanh(o), rtol=0, atol=1e-12)


def test_vanilla_has_the_published_number_of_parameters():
    dims = ModelDims(4096, 151936, 151936, SlotMap(SlotConvention.FILL_IN, 16))
    with torch.device("meta"):
        head = MarkovHead(dims, torch.empty(151936, 4096), rank=256, token_init="random")
    assert sum(p.numel() for p in head.parameters()) == 77_791_232


def test_target_start_keeps_the_geometry_of_the_first_principal_directions(make_dims, embedding):
    table = MarkovHead(make_dims(), embedding, rank=3).token_table.detach().double()
    centred = embedding - embedding.mean(0)
    u, s, _ = torch.linalg.svd(centred, full_matrices=False)
    codes = u[:, :3] * s[:3]
    expected = codes / codes.std()
    torch.testing.assert_close(table @ table.T, expected @ expected.T, rtol=1e-4, atol=1e-4)
    assert abs(float(table.std()) - 1.0) < 1e-5


def test_the_size_of_the_start_can_be_set(make_dims, embedding):
    torch.manual_seed(0)
    scaled = MarkovHead(make_dims(), embedding, rank=3, token_std=0.1).token_table.detach()
    wide = torch.zeros(5000, 6)
    drawn = MarkovHead(make_dims(), wide, rank=8, token_init="random").token_table.detach()
    assert abs(float(scaled.std()) - 0.1) < 1e-6
    assert abs(float(drawn.std()) - 0.02) < 5e-4


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rank": 4, "variant": "gate"}, "head.variant=gate"),
        ({"rank": 4, "token_init": "pca"}, "head.token_init=pca"),
        ({"rank": 4, "rnn_anchor_slot": "use"}, "head.rnn_anchor_slot=use"),
        ({"rank": 0}, "head.rank=0"),
        ({"rank": 7}, "head.rank=7 exceeds the target's width 6"),
    ],
)
def test_impossible_configs_are_named(make_dims, embedding, config, message):
    with pytest.raises(ValueError, match=message):
        MarkovHead(make_dims(), embedding, **config)
