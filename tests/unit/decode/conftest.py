"""Doubles whose every logit and feature is known: a target made of a function, and a drafter that
checks the context it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from xpress_exp.types import SlotConvention, SlotMap, TargetOutput

STOP = 2
SLOTS = SlotMap(SlotConvention.FILL_IN, 4)  # N = 3


class Cache:
    def __init__(self) -> None:
        self.tokens: list[int] = []

    @property
    def length(self) -> int:
        return len(self.tokens)

    def crop(self, length: int) -> None:
        assert length <= self.length
        del self.tokens[length:]


class TableTarget:
    """Next-token logits are a function of all tokens so far; a feature is the token's position."""

    device = torch.device("cpu")
    stop_token_ids = frozenset({STOP})

    def __init__(self, table: Any) -> None:
        self.table = table
        self.cache = Cache()

    def new_decode_cache(self) -> Cache:
        self.cache = Cache()
        return self.cache

    def forward(
        self, input_ids: Tensor, cache: Cache, num_logits: int | None = None
    ) -> TargetOutput:
        rows, positions = [], []
        for token in input_ids[0].tolist():
            positions.append(float(cache.length))
            cache.tokens.append(token)
            rows.append(self.table(tuple(cache.tokens)))
        logits = torch.stack(rows)[None]
        features = torch.tensor(positions)[None, :, None]
        kept = logits if num_logits is None else logits[:, -num_logits:]
        return TargetOutput(logits=kept, features=features, last_hidden=features)


class Drafter:
    """Records the features it is given; hidden states carry the anchor."""

    slots = SLOTS

    def new_cache(self) -> list[float]:
        return []

    def extend(self, cache: list[float], features: Tensor) -> None:
        cache.extend(features[0, :, 0].tolist())

    def draft(self, cache: list[float], anchor: Tensor) -> Tensor:
        assert cache == list(range(len(cache))), "a context feature is missing or repeated"
        self.start = len(cache)
        return anchor[:, None, None].expand(1, SLOTS.block_size, 1).double()


@pytest.fixture
def make_target() -> Callable[[Any], TableTarget]:
    return TableTarget


@pytest.fixture
def drafter() -> Drafter:
    return Drafter()
