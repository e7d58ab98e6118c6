"""Every layout of a frozen weight gives the plain product."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from xpress_exp.few_rows import (
    MAKERS,
    PLAIN,
    ROWS,
    FewRows,
    LayoutChoice,
    available,
    freeze_linears,
    shared,
)


@pytest.mark.parametrize("name", list(MAKERS))
@pytest.mark.parametrize("shape", [(1, 1), (1,), (3,), (2, 4), (1, 9), (65,), (2, 3, 5)])
@torch.inference_mode()
def test_layouts_equal_the_product_in_float64(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    weight, inputs = torch.randn(300, 256), torch.randn(*shape, 256)
    assert name in available(weight)
    layer = FewRows(weight, dict.fromkeys(ROWS, name))
    expected = inputs.double() @ weight.double().T
    torch.testing.assert_close(layer(inputs).double(), expected, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_a_count_of_rows_uses_the_layout_of_the_next_power_of_two() -> None:
    layer = FewRows(torch.randn(300, 256), PLAIN)
    used: list[int] = []

    def spy(rows: int) -> object:
        return lambda inputs: used.append(rows) or functional.linear(inputs, layer.weight)

    layer._products = {rows: spy(rows) for rows in ROWS}  # type: ignore[assignment]
    for count in (1, 2, 3, 4, 5, 8, 9, 33, 64, 65):
        layer(torch.randn(count, 256))
    assert used == [1, 2, 4, 4, 8, 8, 16, 64, 64]


def test_frozen_module_gives_what_it_gave() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(256, 300, bias=False), nn.SiLU(), nn.Linear(300, 256))
    inputs = torch.randn(4, 256)
    before, names = module(inputs).detach(), list(module.state_dict())
    freeze_linears(module, LayoutChoice())
    assert isinstance(module[0], FewRows) and not isinstance(module[2], FewRows)  # it has a bias
    with torch.inference_mode():
        torch.testing.assert_close(module(inputs), before, rtol=1e-4, atol=1e-5)
    assert list(module.state_dict()) == names


def test_small_and_half_precision_weights() -> None:
    assert available(torch.randn(8, 8)) == ["plain"]
    assert "packed" not in available(torch.randn(512, 256, dtype=torch.float64))


def test_one_copy_for_all_readers_of_a_weight() -> None:
    weight, choice = torch.randn(512, 256), LayoutChoice()
    first = shared(weight, choice)
    assert shared(weight, choice) is first
    assert shared(weight.clone(), choice) is not first
