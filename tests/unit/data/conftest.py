"""Shared by the data tests: a tiny target and a small set of made-up responses."""

from __future__ import annotations

import numpy as np
import pytest

from xpress_exp.data.response import Response, ResponseSet
from xpress_exp.target import TinyTarget, tiny_target


@pytest.fixture(scope="session")
def target() -> TinyTarget:
    return tiny_target(layer_ids=(0, 1))


@pytest.fixture(scope="session")
def responses() -> ResponseSet:
    """Twelve documents of 3..9 prompt and 2..12 response tokens, ids 4..63."""
    rng = np.random.default_rng(0)
    rows = tuple(
        Response(
            index=index,
            id=f"row-{index}",
            domain="text",
            family="",
            prompt_ids=rng.integers(4, 64, rng.integers(3, 10), dtype=np.int32),
            response_ids=rng.integers(4, 64, rng.integers(2, 13), dtype=np.int32),
            finish_reason="length",
        )
        for index in range(12)
    )
    return ResponseSet(rows, {"made": "up"}, {"input": 12, "success": 12}, ())
