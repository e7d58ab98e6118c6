"""What every head must keep: declared dependence (Prop. 1), equal forms, a silent start.

Runs for every variant in code and for every YAML of conf/head.
"""

from __future__ import annotations

from pathlib import Path

import hydra
import pytest
import torch
import yaml

from xpress_exp.head import CorrectionHead, GRUHead, MarkovHead, NoHead, XPressHead
from xpress_exp.types import ModelDims, SlotConvention, SlotMap

HIDDEN, VOCAB, BLOCK = 8, 13, 5
SMALL = {"rank": 4, "gru_hidden_size": 3}
CONF = Path(__file__).parents[2] / "conf" / "head"

VARIANTS = [
    {"_target_": NoHead},
    {"_target_": MarkovHead, "rank": 4, "variant": "vanilla"},
    {"_target_": MarkovHead, "rank": 4, "variant": "gated"},
    {"_target_": MarkovHead, "rank": 4, "variant": "rnn"},
    {"_target_": GRUHead, "rank": 4, "gru_hidden_size": 3, "pure_draft_prefix_len": 0},
    {"_target_": GRUHead, "rank": 4, "gru_hidden_size": 3, "pure_draft_prefix_len": 1},
    *(
        {"_target_": XPressHead, "rank": 4, "mix": mix, "mlp": mlp, "init": init}
        for mix, mlp, init in (
            ("strict", "swiglu", "markov"),
            ("strict", "silu", "random"),
            ("inclusive", "swiglu", "random"),
        )
    ),
]


def from_yaml(path: Path) -> dict:
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    del config["name"]
    return {key: SMALL.get(key, value) for key, value in config.items()}


CASES = [
    pytest.param(config, id="-".join(str(getattr(v, "__name__", v)) for v in config.values()))
    for config in VARIANTS
] + [pytest.param(from_yaml(path), id=path.name) for path in sorted(CONF.glob("*.yaml"))]

pytestmark = [
    pytest.mark.parametrize("config", CASES),
    pytest.mark.parametrize("convention", ["fill_in", "shift"]),
]


@pytest.fixture
def fresh(config, convention) -> CorrectionHead:
    """The head as built: not trained."""
    torch.manual_seed(0)
    slots = SlotMap(SlotConvention(convention), BLOCK)
    embedding = torch.randn(VOCAB, HIDDEN, dtype=torch.float64)
    dims = ModelDims(HIDDEN, VOCAB, VOCAB, slots)
    # A partial: Hydra would turn a dataclass argument into a config node.
    build = hydra.utils.instantiate(config, _partial_=True)
    head = build(dims=dims, token_embedding=embedding)
    return head.double().eval()


@pytest.fixture
def head(fresh) -> CorrectionHead:
    """The head with every weight random, so that every path speaks."""
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.normal_(std=0.5)
    return fresh


@pytest.fixture
def block() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(2, BLOCK, HIDDEN, dtype=torch.float64, generator=generator)
    return hidden, torch.randint(VOCAB, (2, BLOCK), generator=generator)


def seen(head, block, which: str) -> torch.Tensor:
    """bool [P, P]: does the code of slot k (row) change, by any bit, with input of slot j?"""
    hidden, tokens = block
    before = head.code(hidden, tokens)
    matrix = torch.zeros(BLOCK, BLOCK, dtype=torch.bool)
    for j in range(BLOCK):
        other_hidden, other_tokens = hidden.clone(), tokens.clone()
        if which == "tokens":
            other_tokens[:, j] = (other_tokens[:, j] + 3) % VOCAB
        else:
            other_hidden[:, j] += 0.7
        after = head.code(other_hidden, other_tokens)
        matrix[:, j] = (before != after).any(-1).any(0)
    return matrix


def allowed(reach: str) -> torch.Tensor:
    ones = torch.ones(BLOCK, BLOCK, dtype=torch.bool)
    patterns = {"none": ~ones, "block": ones, "prefix": ones.tril()}
    return patterns.get(reach, torch.eye(BLOCK, dtype=torch.bool))


@pytest.mark.parametrize("which", ["tokens", "hidden"])
def test_it_reads_exactly_what_it_declares(head, block, which):
    matrix = seen(head, block, which)
    expected = allowed(getattr(head.dependence, which))
    assert not (matrix & ~expected).any(), f"undeclared reads\n{matrix.int()}"
    # Slots without a correction (the anchor's own, a pure draft prefix) may read nothing, and
    # nobody need read the anchor's own slot of fill_in; every other slot reads all it declares.
    first = head.dims.slots.first_slot
    speaking = head.code(*block).any(-1).any(0)
    assert torch.equal(matrix[speaking][:, first:], expected[speaking][:, first:])
    assert head.dependence.tokens == "none" or bool(speaking[first + 1 :].all())


def test_prepared_form_equals_plain_form(head, block):
    hidden, tokens = block
    with torch.no_grad():
        prepared = head.code_from(head.prepare(hidden), tokens)
        torch.testing.assert_close(prepared, head.code(hidden, tokens), rtol=0, atol=1e-10)


def test_steps_equal_plain_form(head, block):
    hidden, tokens = block
    with torch.no_grad():
        state = head.init_state(head.prepare(hidden))
        expected = head.code(hidden, tokens)
        for slot in range(BLOCK):
            z, state = head.step(state, slot, tokens[:, slot])
            torch.testing.assert_close(z, expected[:, slot], rtol=0, atol=1e-10)


def test_default_step_equals_plain_form(head, block):
    hidden, tokens = block
    with torch.no_grad():
        state = CorrectionHead.init_state(head, head.prepare(hidden))
        expected = head.code(hidden, tokens)
        for slot in range(BLOCK):
            z, state = CorrectionHead.step(head, state, slot, tokens[:, slot])
            torch.testing.assert_close(z, expected[:, slot], rtol=0, atol=1e-10)


@pytest.mark.parametrize("rows", [1, 16, 40])
def test_correction_is_base_plus_code_times_readout(head, rows):
    generator = torch.Generator().manual_seed(2)
    rank = head.readout.shape[1]
    z = torch.randn(2, rows, rank, dtype=torch.float64, generator=generator)
    base = torch.randn(2, rows, VOCAB, dtype=torch.float64, generator=generator)
    expected = base.clone()
    for v in range(VOCAB):
        expected[..., v] += (z * head.readout[v]).sum(-1)
    torch.testing.assert_close(head.correct(base, z), expected, rtol=0, atol=1e-12)


@pytest.mark.property("P10")
def test_an_untrained_head_is_the_bare_drafter_bit_for_bit(fresh, block):
    z = fresh.code(*block)
    base = torch.randn(2, BLOCK, VOCAB, generator=torch.Generator().manual_seed(3)).double()
    assert torch.equal(fresh.correct(base, z), base)


def test_the_first_gradient_reaches_the_readout_alone(fresh, block):
    base = torch.zeros(2, BLOCK, VOCAB, dtype=torch.float64)
    loss = fresh.correct(base, fresh.code(*block)).log_softmax(-1)[..., 0].sum()
    if not list(fresh.parameters()):
        assert not loss.requires_grad
        return
    loss.backward()
    moved = {name for name, p in fresh.named_parameters() if p.grad is not None and p.grad.any()}
    assert moved == {"readout"}


def test_saved_weights_restore_the_codes(head, config, block):
    saved = {name: value.clone() for name, value in head.state_dict().items()}
    assert all(value.shape != (VOCAB, HIDDEN) for value in saved.values())
    with torch.no_grad():
        before = head.code_from(head.prepare(block[0]), block[1])
        for parameter in head.parameters():
            parameter.zero_()
        head.load_state_dict(saved)
        assert torch.equal(head.code_from(head.prepare(block[0]), block[1]), before)
