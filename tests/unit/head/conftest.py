"""Small dimensions and random heads in float64 for the head tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from xpress_exp.head import CorrectionHead
from xpress_exp.types import ModelDims, SlotConvention, SlotMap

HIDDEN, VOCAB, DRAFT_VOCAB, BLOCK = 6, 11, 9, 5


@pytest.fixture
def make_dims() -> Callable[[str], ModelDims]:
    def make(convention: str = "fill_in") -> ModelDims:
        slots = SlotMap(SlotConvention(convention), BLOCK)
        return ModelDims(HIDDEN, VOCAB, DRAFT_VOCAB, slots)

    return make


@pytest.fixture
def embedding() -> Tensor:
    return torch.randn(
        VOCAB, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(3)
    )


@pytest.fixture
def make_head(
    make_dims: Callable[[str], ModelDims], embedding: Tensor
) -> Callable[..., CorrectionHead]:
    """Head with every parameter random, so that no path is accidentally silent."""

    def make(kind: type, convention: str = "fill_in", **config: Any) -> CorrectionHead:
        torch.manual_seed(5)
        head = kind(make_dims(convention), embedding, **config).double().eval()
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.normal_(std=0.5)
        return head

    return make


@pytest.fixture
def block() -> tuple[Tensor, Tensor]:
    """hidden [3, P, H] float64 and previous_tokens [3, P]."""
    generator = torch.Generator().manual_seed(7)
    hidden = torch.randn(3, BLOCK, HIDDEN, dtype=torch.float64, generator=generator)
    return hidden, torch.randint(VOCAB, (3, BLOCK), generator=generator)
