"""The hand-written backward pass against automatic differentiation of the plain loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from xpress_exp.head import CorrectionHead
from xpress_exp.objective import CoTrainObjective
from xpress_exp.objective.law_gradient import law_gradient
from xpress_exp.types import BlockTargets, Losses, SlotConvention, SlotMap

from .heads import HEADS, make_head

CLOSE: dict[str, Any] = {"rtol": 1e-11, "atol": 1e-12}
WEIGHTS = {
    "both": {},
    "l1_only": {"ce_weight": 0.0},
    "ce_only": {"l1_weight": 0.0},
    "no_terms": {
        "w_consistency": 0.0,
        "w_anchor": {"start": 0.0, "end": 0.0, "schedule": "constant"},
    },
    "nothing": {"ce_weight": 0.0, "l1_weight": 0.0},
}


def with_gradients(
    case: Any, head: CorrectionHead, **settings: Any
) -> tuple[Losses, dict[str, Tensor | None]]:
    """Losses and the gradient of twice the total in the hidden states and every parameter."""
    hidden = case.hidden.detach().clone().requires_grad_()
    head.zero_grad()
    losses = replace(case, hidden=hidden).loss(head, **settings)
    (2 * losses.total).backward()
    grads = {name: parameter.grad for name, parameter in head.named_parameters()}
    return losses, {"hidden": hidden.grad, **grads}


def assert_paths_agree(case: Any, head: CorrectionHead, close: dict[str, Any], **settings: Any):
    plain, plain_grads = with_gradients(case, head, backward="autograd", **settings)
    fused, fused_grads = with_gradients(case, head, backward="fused", **settings)
    torch.testing.assert_close(fused.total, plain.total, **close)
    torch.testing.assert_close(fused.counts, plain.counts)  # sums of float32 weights
    torch.testing.assert_close(fused.sums, plain.sums, **close)
    torch.testing.assert_close(fused_grads, plain_grads, **close)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("convention", ["fill_in", "shift"])
@pytest.mark.parametrize("name", HEADS)
def test_value_statistics_and_gradients_equal_autograd(
    make_case: Callable[..., Any], name: str, convention: str, reduced: bool, weights: str
) -> None:
    case = make_case(convention, reduced)
    assert_paths_agree(case, make_head(name, case), CLOSE, **WEIGHTS[weights])


@pytest.mark.parametrize("chunk_blocks", [1, 3, 8])
@pytest.mark.parametrize("passes", [1, 2, 3])
@pytest.mark.parametrize("name", ["rnn", "xpress"])
def test_passes_and_chunks(
    make_case: Callable[..., Any], name: str, passes: int, chunk_blocks: int
) -> None:
    case = make_case("fill_in", reduced=True)
    settings = {"consistency_passes": passes, "chunk_blocks": chunk_blocks}
    assert_paths_agree(case, make_head(name, case), CLOSE, **settings)


@pytest.mark.parametrize("name", ["none", "xpress"])
def test_small_tiles(
    make_case: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Two rows of the vocabulary to a tile, so that every chunk has several and a short one."""
    monkeypatch.setattr("xpress_exp.objective.law_gradient.TILE_BYTES", 2 * 11 * 8)
    case = make_case("shift")
    assert_paths_agree(case, make_head(name, case), CLOSE)


def test_slots_of_weight_zero_before_slots_that_count(make_case: Callable[..., Any]) -> None:
    """A gap is measured by nothing, yet its guess is read by the slots behind it."""
    case = make_case("shift")
    weights = case.targets.weights.clone()
    weights[:, 1] = 0
    weights[4, 3] = 0.7
    case = replace(case, targets=replace(case.targets, weights=weights))
    assert_paths_agree(case, make_head("rnn", case), CLOSE, consistency_passes=2)


def test_no_slot_counts(make_case: Callable[..., Any]) -> None:
    case = make_case()
    targets = replace(case.targets, weights=torch.zeros_like(case.targets.weights))
    case = replace(case, targets=targets)
    head = make_head("xpress", case)
    losses, grads = with_gradients(case, head, denominator=torch.tensor(1.0))
    assert float(losses.total) == 0
    assert all(grad is not None and not grad.any() for grad in grads.values())


def test_single_precision(make_case: Callable[..., Any]) -> None:
    case = make_case("fill_in")
    head = make_head("xpress", case).float()
    cast = {"hidden": case.hidden.detach().float(), "lm_head": case.lm_head.detach().float()}
    targets = replace(case.targets, target_hidden=case.targets.target_hidden.float())
    assert_paths_agree(replace(case, targets=targets, **cast), head, {"rtol": 1e-5, "atol": 1e-6})


def test_autocast(make_case: Callable[..., Any]) -> None:
    """Under autocast the products are in half precision on both paths."""
    case = make_case("fill_in")
    head = make_head("xpress", case).float()
    cast = {"hidden": case.hidden.detach().float(), "lm_head": case.lm_head.detach().float()}
    targets = replace(case.targets, target_hidden=case.targets.target_hidden.float())
    with torch.autocast("cpu", torch.bfloat16):
        assert_paths_agree(
            replace(case, targets=targets, **cast), head, {"rtol": 0.05, "atol": 0.02}
        )


def test_labels_of_no_probability() -> None:
    """q(label) = exp(-1000) is 0 in every type; its cross-entropy is not infinite."""
    logits, law = torch.tensor([[0.0, -1000.0, 0.0]]), torch.tensor([[0.0, 1.0, 0.0]])
    out, scratch = torch.empty(1, 3), torch.empty(2, 1, 3)
    losses = law_gradient(logits, torch.tensor([1]), law, 0.5, scratch, out)
    assert losses.cross_entropy.item() == pytest.approx(1000 + torch.tensor(2.0).log().item())
    assert losses.distance is not None and losses.distance.item() == 2
    # The L1 distance is flat here; CE pulls towards the label.
    assert out.tolist() == [[0.25, -0.5, 0.25]]


def test_equal_laws_have_no_gradient() -> None:
    logits = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    law, out, scratch = torch.softmax(logits, -1), logits.clone(), logits.repeat(2, 1, 1)
    losses = law_gradient(logits, torch.tensor([0, 1, 2]), law, 0.0, scratch, out)
    assert losses.distance is not None and losses.distance.tolist() == [0, 0, 0]
    torch.testing.assert_close(out, torch.zeros_like(out), rtol=0, atol=1e-15)


class _Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation returned."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor):
            self.elements = max(self.elements, found.numel())
        return found


def large_case(blocks: int, vocab: int) -> tuple[Any, ...]:
    slots = SlotMap(SlotConvention("shift"), 4)
    ones = torch.ones(blocks, 4, dtype=torch.int64)
    targets = BlockTargets(
        ones[:, 0], ones[:, 0], ones, ones, ones.float(), torch.randn(blocks, 4, 3)
    )
    hidden = torch.randn(blocks, 4, 3, requires_grad=True)
    return hidden, torch.randn(vocab, 3), targets, slots


@pytest.mark.parametrize("blocks", [4, 16, 32])
def test_no_tensor_grows_with_anchors_times_vocabulary(
    make_case: Callable[..., Any], blocks: int
) -> None:
    vocab, chunk = 997, 2
    hidden, lm_head, targets, slots = large_case(blocks, vocab)
    case = replace(make_case("shift"), hidden=hidden, lm_head=lm_head, targets=targets, slots=slots)
    head = make_head("xpress", case).float()
    objective = CoTrainObjective(
        0.1, 0.9, 4.0, {"start": 0.6, "end": 0.2, "schedule": "linear"}, 0.3, 1, chunk
    )
    largest = _Largest()
    with largest:
        losses = objective(hidden, head, lm_head, None, targets, slots, 0.0, targets.weights.sum())
        losses.total.backward()
    assert largest.elements == 2 * chunk * 4 * vocab  # the scratch: two matrices of a chunk
