"""Products and maxima over a vocabulary: kernels differ, results never do."""

from __future__ import annotations

import pytest
import torch

from xpress_exp.readout import argmax, vocab_logits


@pytest.mark.parametrize("rows", [1, 2, 17, 32, 33, 40])
@pytest.mark.parametrize("grad", [True, False])
def test_equals_linear(rows: int, grad: bool) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(rows, 6, dtype=torch.float64)
    weight = torch.randn(13, 6, dtype=torch.float64)
    with torch.set_grad_enabled(grad):
        found = vocab_logits(hidden[None], weight)
    assert found.shape == (1, rows, 13)
    torch.testing.assert_close(found[0], hidden @ weight.T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [16384, 49152, 16385, 100])
def test_argmax_is_the_first_of_equal_maxima(size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    # Integers of a small range: every row has many equal maxima, in and across groups.
    scores = torch.randint(0, 3, (2, 5, size), generator=generator).float()
    scores[0, 0] = -torch.inf
    scores[1, 4] = -1.0
    scores[1, 4, size - 1] = 7.0
    naive = [[row.tolist().index(max(row.tolist())) for row in block] for block in scores]
    assert argmax(scores).tolist() == naive
    assert argmax(scores[0, 1]).tolist() == naive[0][1]
