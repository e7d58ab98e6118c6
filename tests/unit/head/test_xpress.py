"""xPress against eq. 5-8 in plain loops, its start, its sizes and its folded table."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import silu

from xpress_exp.head import XPressHead
from xpress_exp.types import ModelDims, SlotConvention, SlotMap

VARIANTS = [(mix, mlp) for mix in ("strict", "inclusive") for mlp in ("swiglu", "silu")]


def naive_code(head, hidden, tokens, mix, mlp):
    """z [P, r] of one block by the paper's equations."""
    shared = head.down_global.weight @ hidden.mean(0)
    a = [
        head.in_proj.weight
        @ torch.cat([head.down_hidden.weight @ hidden[k], shared, head.token_table[tokens[k]]])
        for k in range(hidden.shape[0])
    ]
    codes = []
    for k in range(hidden.shape[0]):
        c = a[k].clone()
        for j in range(k + 1 if mix == "inclusive" else k):
            c = c + head.mix[:, k, j] * a[j]
        inner = silu((head.mlp.gate_proj if mlp == "swiglu" else head.mlp.up_proj).weight @ c)
        if mlp == "swiglu":
            inner = inner * (head.mlp.up_proj.weight @ c)
        codes.append(c + head.mlp.down_proj.weight @ inner)
    return torch.stack(codes)


@pytest.mark.parametrize(("mix", "mlp"), VARIANTS)
def test_code_matches_the_equations(make_head, block, mix, mlp):
    head = make_head(XPressHead, rank=4, mix=mix, mlp=mlp)
    hidden, tokens = block
    z = head.code(hidden, tokens)
    for n in range(3):
        expected = naive_code(head, hidden[n], tokens[n], mix, mlp)
        torch.testing.assert_close(z[n], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("mix", "mlp"), VARIANTS)
def test_folded_form_equals_the_equations(make_head, block, mix, mlp):
    head = make_head(XPressHead, rank=4, mix=mix, mlp=mlp)
    hidden, tokens = block
    with torch.no_grad():
        folded = head.code_from(head.prepare(hidden), tokens)
    assert head._folded is not None
    for n in range(3):
        expected = naive_code(head, hidden[n], tokens[n], mix, mlp)
        torch.testing.assert_close(folded[n], expected, rtol=0, atol=1e-10)


def test_an_unmasked_mixer_would_read_the_future(make_head, block):
    head = make_head(XPressHead, rank=4)
    hidden, tokens = block
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 11
    same = torch.equal(head.code(hidden, tokens)[:, :-1], head.code(hidden, changed)[:, :-1])
    head.causal.fill_(1.0)
    leaks = not torch.equal(head.code(hidden, tokens)[:, 0], head.code(hidden, changed)[:, 0])
    assert same
    assert leaks


@pytest.mark.parametrize(("mlp", "count"), [("silu", 80_412_672), ("swiglu", 80_543_744)])
def test_it_has_the_published_number_of_parameters(mlp, count):
    dims = ModelDims(4096, 151936, 151936, SlotMap(SlotConvention.FILL_IN, 16))
    with torch.device("meta"):
        embedding = torch.empty(151936, 4096)
        head = XPressHead(dims, embedding, rank=256, mlp=mlp, token_init="random")
    assert sum(p.numel() for p in head.parameters()) == count


def test_markov_start_reads_the_previous_token(make_dims, embedding, block):
    torch.manual_seed(0)
    head = XPressHead(make_dims(), embedding, rank=4, init="markov").double()
    hidden, tokens = block
    expected = head.token_table[tokens]
    assert torch.equal(head.code(torch.zeros_like(hidden), tokens), expected)
    z = head.code(hidden, tokens).detach()
    expected = expected.detach()
    assert 0 < float((z - expected).norm() / expected.norm()) < 0.02


def test_random_start_draws_every_matrix_alike(make_dims):
    torch.manual_seed(0)
    head = XPressHead(make_dims(), torch.zeros(11, 60), rank=40, init="random", token_init="random")
    drawn = [head.token_table, head.in_proj.weight, head.mlp.down_proj.weight]
    assert all(abs(float(weight.detach().std()) - 0.02) < 3e-3 for weight in drawn)
    assert not head.mix.any()
    assert not head.readout.any()


def test_the_published_default_reads_the_anchor(make_dims, embedding):
    assert XPressHead(make_dims(), embedding, rank=4).anchor_prev == "anchor"
    head = XPressHead(make_dims(), embedding, rank=4, anchor_prev="predecessor")
    assert head.anchor_prev == "predecessor"


def change_in_place(head):
    with torch.no_grad():
        head.token_table.mul_(2.0)


def change_by_optimizer(head):
    head.train()
    for parameter in head.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(head.parameters(), lr=0.1).step()
    head.eval()


def change_by_loading(head):
    head.load_state_dict({name: value + 0.25 for name, value in head.state_dict().items()})


def change_input_projection(head):
    head.in_proj.weight.data = head.in_proj.weight.data + 0.5


def change_data_in_place(head):
    head.token_table.data.mul_(2.0)
    head.refold()


@pytest.mark.parametrize(
    "change",
    [
        change_in_place,
        change_by_optimizer,
        change_by_loading,
        change_input_projection,
        change_data_in_place,
    ],
)
def test_the_folded_table_is_never_stale(make_head, block, change):
    head = make_head(XPressHead, rank=4)
    hidden, tokens = block
    with torch.no_grad():
        before = head.code_from(head.prepare(hidden), tokens)
    change(head)
    with torch.no_grad():
        after = head.code_from(head.prepare(hidden), tokens)
        torch.testing.assert_close(after, head.code(hidden, tokens), rtol=0, atol=1e-10)
    assert not torch.allclose(before, after)


@pytest.mark.parametrize("training", [True, False])
def test_recorded_gradients_bypass_the_table(make_head, block, training):
    head = make_head(XPressHead, rank=4).train(training)
    hidden, tokens = block
    z = head.code_from(head.prepare(hidden), tokens)
    z.sum().backward()
    assert head._folded is None
    assert head.token_table.grad is not None
    assert head.token_table.grad.any()


def test_the_table_is_kept_between_passes_and_not_saved(make_head, block):
    head = make_head(XPressHead, rank=4)
    hidden, tokens = block
    with torch.no_grad():
        head.code_from(head.prepare(hidden), tokens)
        table = head._table()
        head.code_from(head.prepare(hidden), tokens)
    assert head._table() is table
    assert sorted(head.state_dict()) == sorted(name for name, _ in head.named_parameters())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"mix": "lower"}, "head.mix=lower"),
        ({"mlp": "relu"}, "head.mlp=relu"),
        ({"init": "zero"}, "head.init=zero"),
        ({"anchor_prev": "none"}, "head.anchor_prev=none"),
    ],
)
def test_unknown_options_are_named(make_dims, embedding, config, message):
    with pytest.raises(ValueError, match=message):
        XPressHead(make_dims(), embedding, rank=4, **config)
