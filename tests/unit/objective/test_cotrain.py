"""Eq. 14-15 against a loop over single positions, for every head, value and gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from xpress_exp.head import CorrectionHead, NoHead

from .conftest import SETTINGS
from .heads import HEADS, make_head

CLOSE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}


@pytest.fixture(autouse=True, params=["fused", "autograd"])
def backward(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test holds for both ways to the gradient."""
    monkeypatch.setitem(SETTINGS, "backward", request.param)


def naive_total(
    case: Any, head: CorrectionHead, naive_law: Any, w_anchor: float, passes: int = 1
) -> tuple[Tensor, Tensor]:
    """(L_total, L(p^r_hat)) of eq. 15, numerators."""
    base = naive_law(case, head, None)
    if isinstance(head, NoHead):
        return base.loss, torch.zeros(())
    total = naive_law(case, head, case.targets.previous_tokens).loss + w_anchor * base.loss
    guess, consistency = base.argmax, torch.zeros((), dtype=torch.float64)
    for _ in range(passes):
        previous = []
        for block, columns in enumerate(guess):
            lead = [case.targets.anchor_previous[block], case.targets.anchor[block]]
            read = [*lead[1 - case.slots.first_slot :], *case.ids(columns)]
            previous.append([int(token) for token in read[: case.slots.block_size]])
        law = naive_law(case, head, torch.tensor(previous))
        consistency = consistency + law.loss / passes
        guess = law.argmax
    return total + 0.3 * consistency, consistency


def assert_equal_gradients(first: Tensor, second: Tensor, case: Any, head: CorrectionHead) -> None:
    """In hidden states and head; a tensor without effect has gradient 0."""
    sources = [case.hidden, *head.parameters()]
    options = {"allow_unused": True, "materialize_grads": True, "retain_graph": True}
    found = torch.autograd.grad(first, sources, **options)
    expected = torch.autograd.grad(second, sources, **options)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, **CLOSE)


@pytest.mark.parametrize("convention", ["fill_in", "shift"])
@pytest.mark.parametrize("name", HEADS)
def test_value_and_gradient_equal_the_naive_loop(
    make_case: Callable[..., Any], naive_law: Callable[..., Any], name: str, convention: str
) -> None:
    case = make_case(convention)
    head = make_head(name, case)
    found = case.loss(head, progress=0.25)
    numerator, consistency = naive_total(case, head, naive_law, w_anchor=0.5)
    expected = numerator / case.denominator
    torch.testing.assert_close(found.total, expected, **CLOSE)
    assert_equal_gradients(found.total, expected, case, head)
    if name != "none":
        torch.testing.assert_close(found.sums["consistency_loss"], consistency.detach(), **CLOSE)


@pytest.mark.parametrize("name", ["none", "vanilla", "xpress"])
def test_reduced_vocabulary_adds_the_mass_outside(
    make_case: Callable[..., Any], naive_law: Callable[..., Any], name: str
) -> None:
    case = make_case("fill_in", reduced=True)
    head = make_head(name, case)
    found = case.loss(head)
    expected = naive_total(case, head, naive_law, w_anchor=0.5)[0] / case.denominator
    torch.testing.assert_close(found.total, expected, **CLOSE)
    assert_equal_gradients(found.total, expected, case, head)


@pytest.mark.parametrize("passes", [2, 3])
def test_more_consistency_passes_average_free_running_rounds(
    make_case: Callable[..., Any], naive_law: Callable[..., Any], passes: int
) -> None:
    case = make_case("shift")
    head = make_head("xpress", case)
    found = case.loss(head, consistency_passes=passes)
    numerator, consistency = naive_total(case, head, naive_law, 0.5, passes)
    torch.testing.assert_close(found.total, numerator / case.denominator, **CLOSE)
    torch.testing.assert_close(found.sums["consistency_loss"], consistency.detach(), **CLOSE)
    one = naive_total(case, head, naive_law, 0.5, 1)[1]
    assert abs(float(consistency - one)) > 1e-3  # the rounds do differ


def test_statistics(make_case: Callable[..., Any], naive_law: Callable[..., Any]) -> None:
    case = make_case("fill_in")
    head = make_head("gated", case)
    found = case.loss(head)
    laws = {"base": None, "refined": case.targets.previous_tokens}
    for prefix, previous in laws.items():
        expected = naive_law(case, head, previous)
        torch.testing.assert_close(found.sums[f"{prefix}_ce"], expected.ce.detach(), **CLOSE)
        torch.testing.assert_close(found.sums[f"{prefix}_l1"], expected.l1.detach(), **CLOSE)
        assert found.sums[f"{prefix}_accept"].tolist() == pytest.approx(expected.accept)
        assert found.sums[f"{prefix}_hit"].tolist() == expected.hit
    # Prefixes of 4, 3, 1, 2 and 0 labels over the three drafted slots.
    assert found.counts["slot_count"].tolist() == [4, 3, 2]
    torch.testing.assert_close(found.counts["weight"], case.targets.weights.sum())


def test_cross_entropy_alone_reads_no_target_law(
    make_case: Callable[..., Any], naive_law: Callable[..., Any]
) -> None:
    case = make_case()
    head = make_head("vanilla", case)
    case.targets.target_hidden.fill_(float("nan"))
    found = case.loss(head, l1_weight=0.0, ce_weight=1.0, w_consistency=0.0)
    base, refined = (
        naive_law(case, head, previous).ce for previous in (None, case.targets.previous_tokens)
    )
    torch.testing.assert_close(found.total, (refined + 0.5 * base) / case.denominator, **CLOSE)
    assert not {"base_l1", "refined_accept"} & set(found.sums)


@pytest.mark.parametrize(("progress", "weight"), [(0.0, 0.6), (0.5, 0.4), (1.0, 0.2)])
def test_anchor_weight_moves_with_progress(
    make_case: Callable[..., Any], naive_law: Callable[..., Any], progress: float, weight: float
) -> None:
    case = make_case()
    head = make_head("vanilla", case)
    expected = naive_total(case, head, naive_law, weight)[0] / case.denominator
    torch.testing.assert_close(case.loss(head, progress).total, expected, **CLOSE)


@pytest.mark.property("P13")
def test_without_extra_terms_it_is_the_refined_loss(
    make_case: Callable[..., Any], naive_law: Callable[..., Any]
) -> None:
    case = make_case()
    head = make_head("xpress", case)
    zero = {"start": 0.0, "end": 0.0, "schedule": "constant"}
    found = case.loss(head, w_anchor=zero, w_consistency=0.0)
    expected = naive_law(case, head, case.targets.previous_tokens).loss / case.denominator
    torch.testing.assert_close(found.total, expected, **CLOSE)
    assert "consistency_loss" not in found.sums


@pytest.mark.property("P13")
@pytest.mark.parametrize("convention", ["fill_in", "shift"])
def test_right_guesses_make_the_consistency_loss_the_refined_loss(
    make_case: Callable[..., Any], naive_law: Callable[..., Any], convention: str
) -> None:
    case = make_case(convention)
    head = make_head("rnn", case)
    guess = torch.tensor(naive_law(case, head, None).argmax)
    case.targets.previous_tokens.copy_(
        case.slots.previous_tokens(case.targets.anchor, guess, case.targets.anchor_previous)
    )
    sums = case.loss(head).sums
    refined = 0.1 * sums["refined_ce"] + 0.9 * sums["refined_l1"]
    torch.testing.assert_close(sums["consistency_loss"], refined, **CLOSE)


@pytest.mark.parametrize("name", HEADS)
def test_chunk_size_does_not_matter(make_case: Callable[..., Any], name: str) -> None:
    case = make_case()
    head = make_head(name, case)
    whole = case.loss(head, chunk_blocks=64)
    for size in (1, 2, 3, 5):
        found = case.loss(head, chunk_blocks=size)
        torch.testing.assert_close(found.total, whole.total, **CLOSE)
        for key, value in whole.sums.items():
            torch.testing.assert_close(found.sums[key], value, **CLOSE)
        assert_equal_gradients(found.total, whole.total, case, head)


def test_without_gradient_the_value_is_the_same(make_case: Callable[..., Any]) -> None:
    case = make_case()
    head = make_head("xpress", case)
    expected = case.loss(head)
    with torch.no_grad():
        found = case.loss(head)
    assert not found.total.requires_grad
    torch.testing.assert_close(found.total, expected.total.detach(), **CLOSE)
    torch.testing.assert_close(found.sums["refined_l1"], expected.sums["refined_l1"], **CLOSE)


@pytest.mark.parametrize("cuts", [[2, 3], [1, 1, 3], [4, 1]])
def test_split_batches_with_a_pooled_denominator_equal_the_whole(
    make_case: Callable[..., Any], cuts: list[int]
) -> None:
    """P18: ranks and micro-batches see different numbers of labels."""
    case = make_case()
    head = make_head("gru", case)
    whole = case.loss(head).total
    total, start = torch.zeros((), dtype=torch.float64), 0
    for count in cuts:
        part = case.part(slice(start, start + count))
        total = total + part.loss(head, denominator=case.denominator).total
        start += count
    torch.testing.assert_close(total, whole, **CLOSE)
    assert_equal_gradients(total, whole, case, head)


@pytest.mark.parametrize("name", HEADS)
def test_gradient_reaches_drafter_and_head_only(make_case: Callable[..., Any], name: str) -> None:
    case = make_case()
    case.targets.target_hidden.requires_grad_()
    head = make_head(name, case)
    case.loss(head).total.backward()
    assert case.hidden.grad is not None and bool(case.hidden.grad.any())
    for field, parameter in head.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.any()), field
    assert case.lm_head.grad is None
    assert case.targets.target_hidden.grad is None


@pytest.mark.parametrize("name", [name for name in HEADS if name != "none"])
def test_a_fresh_head_is_dflash_and_only_its_readout_learns(
    make_case: Callable[..., Any], name: str
) -> None:
    """P10: bit for bit, since the correction is exactly zero."""
    case = make_case()
    head = make_head(name, case, noise=0.0)
    bare = case.loss(make_head("none", case))
    found = case.loss(head, progress=1.0)
    for key in ("ce", "l1", "accept", "hit"):
        assert torch.equal(found.sums[f"refined_{key}"], bare.sums[f"base_{key}"])
        assert torch.equal(found.sums[f"base_{key}"], bare.sums[f"base_{key}"])
    torch.testing.assert_close(found.total, bare.total * (1 + 0.2 + 0.3), **CLOSE)
    found.total.backward()
    for field, parameter in head.named_parameters():
        assert parameter.grad is not None
        assert bool(parameter.grad.any()) == (field == "readout"), field


def test_half_precision_logits_are_widened(make_case: Callable[..., Any]) -> None:
    case = make_case()
    head = make_head("none", case)
    exact = case.loss(head).total
    hidden = case.hidden.detach().bfloat16().requires_grad_()
    narrow = replace(case, hidden=hidden, lm_head=case.lm_head.detach().bfloat16())
    found = narrow.loss(head.bfloat16()).total
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact.detach(), rtol=0.02, atol=0.02)
