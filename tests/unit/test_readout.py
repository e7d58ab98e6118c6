"""vocab_logits picks a kernel by the number of rows; the product never changes."""

from __future__ import annotations

import pytest
import torch

from xpress_exp.readout import vocab_logits


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
