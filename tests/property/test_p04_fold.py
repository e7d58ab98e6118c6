"""P4: the folded xPress head is the unfolded one. Forms: (A) one dense matrix per pair of slots,
(B) I + L built once, (C) hidden part once per block and a folded token table (decoding)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from xpress_exp.head import XPressHead


def inputs(case: Any, tokens: Tensor) -> Tensor:
    """[P, 3r]: W_h h_j, W_g mean(h), W_e[x_{j-1}]."""
    head, hidden = case.head, case.block.hidden[0]
    shared = (hidden.mean(0) @ head.down_global.weight.T).expand(len(hidden), -1)
    own = hidden @ head.down_hidden.weight.T
    return torch.cat([own, shared, head.token_table[case.reads(tokens)[0]]], -1)


def mixer(head: XPressHead) -> Tensor:
    """I + L [r, P, P]."""
    return torch.eye(head.mix.shape[1], dtype=head.mix.dtype) + head.mix * head.causal


def dense_code(case: Any, tokens: Tensor) -> Tensor:
    """(A) c_k = sum_j diag((I + L)_kj) W_in a_j."""
    head, a = case.head, inputs(case, tokens)
    matrices = torch.einsum("rkj,rd->kjrd", mixer(head), head.in_proj.weight)
    c = torch.einsum("kjrd,jd->kr", matrices, a)
    return c + head.mlp(c)


def mixed_code(case: Any, tokens: Tensor) -> Tensor:
    """(B) c = (I + L) (W_in a)."""
    head = case.head
    c = torch.einsum("rkj,jr->kr", mixer(head), inputs(case, tokens) @ head.in_proj.weight.T)
    return c + head.mlp(c)


def folded_code(case: Any, tokens: Tensor) -> Tensor:
    """(C) as decoding runs it."""
    prepared = case.head.prepare(case.block.hidden)
    z = case.head.code_from(prepared, case.reads(tokens))[0]
    assert case.head._folded is not None
    return z


@pytest.mark.property("P4")
@pytest.mark.parametrize("mix", ["strict", "inclusive"])
@pytest.mark.parametrize("mlp", ["swiglu", "silu"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.bfloat16, 2e-2)])
def test_p04_all_forms_of_the_head_are_equal(
    make_case: Callable[..., Any],
    convention: str,
    mix: Any,
    mlp: Any,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    """float64: largest absolute error; bfloat16: relative error in norm. bfloat16 keeps 8 bits, so
    that forms which round at different places differ by a few times 2^-9."""
    head = partial(XPressHead, rank=16, mix=mix, mlp=mlp, token_init="random")
    case = make_case(head, convention, vocab=9)
    case.head.to(dtype)
    case.block.hidden.data = case.block.hidden.to(dtype)
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        tokens = torch.randint(9, (1, 4), generator=generator)
        with torch.no_grad():
            plain = case.head.code(case.block.hidden, case.reads(tokens))[0]
            for form in (dense_code, mixed_code, folded_code):
                error = (form(case, tokens) - plain).double()
                if dtype == torch.float64:
                    assert float(error.abs().max()) < tolerance, form.__name__
                else:
                    assert float(error.norm() / plain.double().norm()) < tolerance, form.__name__
