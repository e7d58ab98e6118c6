"""Theorem 1 by enumeration of all seeds, and the options of the Jacobi solver."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from xpress_exp.head import GRUHead, MarkovHead, NoHead, XPressHead
from xpress_exp.solver import JacobiSolver, ParallelSolver, SequentialSolver
from xpress_exp.solver.contract import pick, refined_logits
from xpress_exp.solver.gumbel import gumbel_like

HEADS = [
    (MarkovHead, {"rank": 3}),
    (MarkovHead, {"rank": 3, "variant": "gated"}),
    (MarkovHead, {"rank": 3, "variant": "rnn"}),
    (GRUHead, {"rank": 3, "gru_hidden_size": 2}),
    (XPressHead, {"rank": 3}),
    (XPressHead, {"rank": 3, "mix": "inclusive", "mlp": "silu"}),
]
each_head = pytest.mark.parametrize(("kind", "config"), HEADS)


def sweep(head, block, noise, tokens, temperature):
    """One pass of the solver's own machinery from given tokens."""
    with torch.no_grad():
        logits = refined_logits(block, head, head.prepare(block.hidden), tokens, temperature)
    return pick(block, logits, noise)


@each_head
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_seed_converges_to_the_one_fixed_point(make_case, kind, config, temperature):
    seeds = torch.tensor(list(product(range(4), repeat=4)))
    head, block = make_case(kind, rows=len(seeds), **config)
    one_row = replace(
        block,
        **{
            name: getattr(block, name)[:1]
            for name in ("base_logits", "hidden", "anchor", "anchor_previous")
        },
    )
    distinct = set()
    for table in range(20 if temperature else 1):
        generator = torch.Generator().manual_seed(table)
        truth = SequentialSolver().propose(one_row, head, temperature, generator).tokens
        generator.manual_seed(table)
        noise = gumbel_like(one_row.base_logits, generator) if temperature else None
        first = tokens = sweep(head, block, noise, seeds, temperature)
        for done in range(1, 5):
            assert torch.equal(tokens[:, :done], truth.expand(256, 4)[:, :done])
            tokens = sweep(head, block, noise, tokens, temperature)
        assert int((first == seeds).all(1).sum()) == 1
        distinct.update(map(tuple, first.tolist()))
        assert torch.equal(seeds[(first == seeds).all(1)], truth)
    assert len(distinct) > 5  # the tokens do matter


def test_an_unmasked_mixer_would_break_the_theorem(make_case):
    """Negative control: with reads of later tokens, x_1 is not settled by the first pass."""
    seeds = torch.tensor(list(product(range(4), repeat=4)))
    head, block = make_case(XPressHead, rows=len(seeds), rank=3)
    first_tokens = {True: set(), False: set()}
    for causal in (True, False):
        if not causal:
            head.causal.fill_(1.0)
        for table in range(20):
            noise = gumbel_like(block.base_logits[:1], torch.Generator().manual_seed(table))
            found = sweep(head, block, noise, seeds, 1.0)[:, 0]
            first_tokens[causal].add(len(set(found.tolist())))
    assert first_tokens[True] == {1}
    assert max(first_tokens[False]) > 1


@each_head
@pytest.mark.parametrize("convention", ["fill_in", "shift"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("seed", ["sampled", "argmax"])
def test_n_passes_equal_sequential_drafting(make_case, kind, config, convention, temperature, seed):
    ids = torch.tensor([0, 2, 3, 6, 7])
    head, block = make_case(kind, convention, vocab=8, rows=5, vocab_ids=ids, **config)
    generator = torch.Generator().manual_seed(3)
    expected = SequentialSolver().propose(block, head, temperature, generator)
    found = JacobiSolver(4, seed=seed, stop="never").propose(
        block, head, temperature, generator.manual_seed(3)
    )
    assert torch.equal(found.tokens, expected.tokens)
    assert found.num_passes == 4
    if temperature:
        torch.testing.assert_close(found.logits, expected.logits, rtol=0, atol=1e-10)


@pytest.mark.property("P12d")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("noise", ["shared", "last"])
@pytest.mark.parametrize("seed", ["sampled", "argmax"])
def test_stopping_at_the_fixed_point_changes_nothing_but_passes(
    make_case, temperature, noise, seed
):
    saved = 0
    for trial in range(20):
        head, block = make_case(XPressHead, rank=3, rows=2)
        block = replace(block, base_logits=block.base_logits * (1 + trial % 5))
        found = {}
        for stop in ("fixed_point", "never"):
            generator = torch.Generator().manual_seed(trial)
            solver = JacobiSolver(7, noise=noise, seed=seed, stop=stop)
            found[stop] = solver.propose(block, head, temperature, generator)
        early, full = found["fixed_point"], found["never"]
        assert torch.equal(early.tokens, full.tokens)
        assert full.num_passes == 7
        saved += full.num_passes - early.num_passes
        if temperature:
            torch.testing.assert_close(early.logits, full.logits, rtol=0, atol=1e-12)
    assert saved >= 40


def test_fresh_noise_never_stops_early_and_differs_from_shared(make_case):
    head, block = make_case(MarkovHead, rank=3)
    with torch.no_grad():
        head.readout.zero_()
    generator = torch.Generator().manual_seed(0)
    shared = JacobiSolver(5).propose(block, head, 1.0, generator)
    fresh = JacobiSolver(5, noise="fresh").propose(block, head, 1.0, generator.manual_seed(0))
    assert (shared.num_passes, fresh.num_passes) == (1, 5)
    draws = [gumbel_like(block.base_logits, generator.manual_seed(0))]
    draws += [gumbel_like(block.base_logits, generator) for _ in range(5)]
    assert torch.equal(fresh.tokens, (block.base_logits + draws[-1]).argmax(-1))
    assert JacobiSolver(5, noise="fresh").propose(block, head, 0.0, None).num_passes == 1


def test_fresh_noise_does_not_stop_at_a_coincidence(make_case):
    head, block = make_case(MarkovHead, rank=3)
    certain = replace(block, base_logits=1e4 * block.base_logits)
    solver = JacobiSolver(5, noise="fresh")
    assert solver.propose(certain, head, 1.0, torch.Generator().manual_seed(0)).num_passes == 5


@pytest.mark.parametrize("seed", ["sampled", "argmax"])
def test_the_first_pass_reads_the_chosen_seed(make_case, seed):
    head, block = make_case(MarkovHead, "shift", rank=3, rows=8)
    noise = gumbel_like(block.base_logits, torch.Generator().manual_seed(4))
    drawn, best = (block.base_logits + noise).argmax(-1), block.base_logits.argmax(-1)
    assert not torch.equal(drawn, best)
    expected = refined_logits(
        block, head, head.prepare(block.hidden), drawn if seed == "sampled" else best, 1.0
    )
    found = JacobiSolver(1, seed=seed).propose(block, head, 1.0, torch.Generator().manual_seed(4))
    torch.testing.assert_close(found.logits, expected, rtol=0, atol=1e-12)


def test_last_noise_draws_once_from_the_greedy_tokens(make_case):
    head, block = make_case(XPressHead, rank=3, rows=3)
    tokens = block.base_logits.argmax(-1)
    for _ in range(2):
        tokens = sweep(head, block, None, tokens, 0.0)
    noise = gumbel_like(block.base_logits, torch.Generator().manual_seed(6))
    expected = sweep(head, block, noise, tokens, 0.6)
    found = JacobiSolver(3, noise="last", stop="never").propose(
        block, head, 0.6, torch.Generator().manual_seed(6)
    )
    assert torch.equal(found.tokens, expected)


def test_the_law_is_the_tensor_whose_draw_gave_the_tokens(make_case):
    differs = False
    for trial in range(10):
        head, block = make_case(XPressHead, rank=3, rows=8)
        generator = torch.Generator().manual_seed(trial)
        found = JacobiSolver(1).propose(block, head, 0.9, generator)
        noise = gumbel_like(block.base_logits, generator.manual_seed(trial))
        assert torch.equal((found.logits + noise).argmax(-1), found.tokens)
        again = refined_logits(block, head, head.prepare(block.hidden), found.tokens, 0.9)
        differs |= not torch.allclose(again, found.logits)
    assert differs


@pytest.mark.parametrize("seed", ["sampled", "argmax"])
@pytest.mark.parametrize("noise", ["shared", "fresh", "last"])
@pytest.mark.parametrize("kind", ["no passes", "no head"])
def test_no_pass_means_a_draw_from_the_base_law(make_case, kind, noise, seed):
    if kind == "no passes":
        (head, block), solver = make_case(XPressHead, rank=3), JacobiSolver(0, noise, seed)
    else:
        (head, block), solver = make_case(NoHead), JacobiSolver(3, noise, seed)
    found = solver.propose(block, head, 2.0, torch.Generator().manual_seed(5))
    eps = gumbel_like(block.base_logits, torch.Generator().manual_seed(5))
    assert torch.equal(found.logits, block.base_logits / 2.0)
    assert torch.equal(found.tokens, (block.base_logits / 2.0 + eps).argmax(-1))
    assert found.num_passes == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "solver", [JacobiSolver(4), JacobiSolver(4, stop="never"), SequentialSolver(), ParallelSolver()]
)
@each_head
def test_a_silent_head_drafts_as_the_base(make_case, kind, config, solver, temperature):
    head, block = make_case(kind, rows=2, **config)
    with torch.no_grad():
        head.readout.zero_()
    generator = torch.Generator().manual_seed(8)
    base = JacobiSolver(0).propose(block, head, temperature, generator)
    found = solver.propose(block, head, temperature, generator.manual_seed(8))
    assert torch.equal(found.tokens, base.tokens)
    if temperature:
        assert torch.equal(found.logits, base.logits)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_iterations": -1}, "solver.num_iterations=-1"),
        ({"num_iterations": 1, "noise": "same"}, "solver.noise=same"),
        ({"num_iterations": 1, "seed": "greedy"}, "solver.seed=greedy"),
        ({"num_iterations": 1, "stop": "always"}, "solver.stop=always"),
    ],
)
def test_impossible_configs_are_named(config, message):
    with pytest.raises(ValueError, match=message):
        JacobiSolver(**config)
