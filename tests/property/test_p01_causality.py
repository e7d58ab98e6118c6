"""P1 (Prop. 1): the corrected logits of x_k depend on x_0..x_{k-1} and on no other token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from xpress_exp.objective import CoTrainObjective
from xpress_exp.types import BlockTargets

VOCAB, DRAFTS = 9, 4
TOKENS = torch.tensor([[1, 5, 2, 7]])  # distinct: each has a row of the token table to itself


def expected(head_name: str) -> Tensor:
    """bool [N, N]: does l_k (row, k = 1..N) read x_j (column, j = 0..N-1)?"""
    if head_name in ("vanilla", "gated"):
        return torch.eye(DRAFTS, dtype=torch.bool)
    reads = torch.ones(DRAFTS, DRAFTS, dtype=torch.bool).tril()
    if head_name == "gru":
        reads[0] = False  # Domino leaves x_1 to the drafter
    return reads


def stepped(case: Any, tokens: Tensor) -> Tensor:
    state = case.head.init_state(case.head.prepare(case.block.hidden))
    codes = []
    for slot, token in enumerate(case.reads(tokens).T):
        z, state = case.head.step(state, slot, token)
        codes.append(z)
    return torch.stack(codes, 1)


FORMS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "plain": lambda case, tokens: case.head.code(case.block.hidden, case.reads(tokens)),
    "folded": lambda case, tokens: case.head.code_from(
        case.head.prepare(case.block.hidden), case.reads(tokens)
    ),
    "steps": stepped,
}


def logits(case: Any, form: str, tokens: Tensor) -> Tensor:
    z = FORMS[form](case, tokens)[:, case.block.slots.draft_slots]
    return case.head.correct(case.block.base_logits, z)[0]


def train(case: Any) -> None:
    """Three steps on random labels from the initialisation: with one, only the readout moves."""
    torch.manual_seed(2)
    slots, hidden = case.block.slots, case.block.hidden
    shape = (1, slots.block_size)
    targets = BlockTargets(
        case.block.anchor,
        case.block.anchor,
        torch.randint(VOCAB, shape),
        torch.randint(VOCAB, shape),
        slots.decay_weights(4.0)[None],
        torch.randn(*shape, hidden.shape[2], dtype=torch.float64),
    )
    weight = {"start": 0.6, "end": 0.2, "schedule": "linear"}
    objective = CoTrainObjective(0.1, 0.9, 4.0, weight, 0.3, 1, 8)
    lm_head = torch.randn(VOCAB, hidden.shape[2], dtype=torch.float64)
    optimizer = torch.optim.AdamW(case.head.parameters(), lr=0.05)
    case.head.train()
    for _ in range(3):
        optimizer.zero_grad()
        total = targets.weights.sum()
        objective(hidden, case.head, lm_head, None, targets, slots, 0.0, total).total.backward()
        optimizer.step()
    case.head.eval()


@pytest.mark.property("P1")
@pytest.mark.parametrize("weights", ["random", "trained"])
def test_p01_logits_read_the_earlier_tokens_and_no_other(
    make_case: Callable[..., Any], head_name: str, convention: str, weights: str
) -> None:
    case = make_case(head_name, convention, vocab=VOCAB, fresh=weights == "trained")
    if weights == "trained":
        train(case)
    for form in FORMS:
        found = torch.zeros(DRAFTS, DRAFTS, dtype=torch.bool)
        with torch.no_grad():
            before = logits(case, form, TOKENS)
            for j in range(DRAFTS):
                tokens = TOKENS.clone()
                tokens[0, j] = 8
                found[:, j] = (logits(case, form, tokens) != before).any(-1)
        assert torch.equal(found, expected(head_name)), (form, found.int())


@pytest.mark.property("P1")
@pytest.mark.parametrize("form", FORMS)
def test_p01_gradients_reach_the_earlier_tokens_and_no_other(
    make_case: Callable[..., Any], head_name: str, convention: str, form: str
) -> None:
    case = make_case(head_name, convention, vocab=VOCAB)
    if head_name == "gru":
        case.head.token_embedding = case.head.token_embedding.clone().requires_grad_()
        table = case.head.token_embedding
    else:
        table = case.head.token_table
    found = torch.zeros(DRAFTS, DRAFTS, dtype=torch.bool)
    directions = torch.randn(DRAFTS, VOCAB, dtype=torch.float64)
    scores = (logits(case, form, TOKENS) * directions).sum(-1)
    for k in range(DRAFTS):
        (gradient,) = torch.autograd.grad(
            scores[k], table, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        found[k] = gradient[TOKENS[0]].any(-1)
    assert torch.equal(found, expected(head_name)), found.int()


@pytest.mark.parametrize("form", ["plain", "folded"])
def test_p01_fails_for_an_unmasked_mixer(make_case: Callable[..., Any], form: str) -> None:
    """Negative control."""
    case = make_case("xpress", "fill_in", vocab=VOCAB)
    case.head.causal.fill_(1.0)
    tokens = TOKENS.clone()
    tokens[0, -1] = 8
    with torch.no_grad():
        changed = logits(case, form, tokens) != logits(case, form, TOKENS)
    assert bool(changed[0].any())
