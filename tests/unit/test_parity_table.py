"""When a comparison with a published package counts as passed (tests/parity)."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

FILE = Path(__file__).parents[1] / "parity" / "table.py"


@pytest.fixture(scope="module")
def table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("parity_table", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def case(table: ModuleType, ours: list[float], **options: Tensor) -> object:
    key = table.Key("a peer", "a head", "shift", "forward")
    named = {name: {"x": value} for name, value in options.items()}
    return table.Case(key, "task", {}, {"x": torch.tensor(ours)}, 1e-3, **named)


def test_a_row_is_judged_by_the_largest_relative_error(table: ModuleType) -> None:
    wanted = case(table, [1.0, -4.0])
    assert table.judge(wanted, {"x": torch.tensor([1.0, -4.0])}, "1").passed
    row = table.judge(wanted, {"x": torch.tensor([1.1, -4.0])}, "1")
    assert not row.passed
    assert row.max_relative_error == pytest.approx(0.1 / 4)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"y": torch.tensor([1.0, -4.0])},
        {"x": torch.tensor([1.0, -4.0]), "y": torch.ones(1)},
        {"x": torch.tensor([[1.0, -4.0]])},
        {"x": torch.tensor([1.0, float("nan")])},
    ],
    ids=["nothing", "another name", "one too many", "another shape", "nan"],
)
def test_another_answer_fails(table: ModuleType, answer: dict[str, Tensor]) -> None:
    assert not table.judge(case(table, [1.0, -4.0]), answer, "1").passed


def test_a_case_by_hand_shows_the_peer_wrong_and_us_right(table: ModuleType) -> None:
    truth, mistake = torch.tensor([1.0]), torch.tensor([2.0])
    right = case(table, [1.0], truth=truth, mistake=mistake)
    assert table.judge(right, {"x": mistake}, "1").passed
    assert not table.judge(right, {"x": truth}, "1").passed  # the peer was corrected
    assert not table.judge(
        case(table, [2.0], truth=truth, mistake=mistake), {"x": mistake}, "1"
    ).passed
    same = case(table, [1.0], truth=truth, mistake=truth)
    assert not table.judge(same, {"x": truth}, "1").passed  # shows nothing


def test_every_expected_row_must_be_there_once(table: ModuleType) -> None:
    rows = [
        table.Row(key.peer, "1", key.subject, key.convention, key.kind, 0.0, 1e-5, True)
        for key in table.EXPECTED
    ]
    assert table.problems(rows) == []
    assert [line[:8] for line in table.problems(rows[1:])] == ["missing:"]
    assert [line[:9] for line in table.problems([*rows, rows[0]])] == ["repeated:"]
    stranger = replace(rows[0], subject="something else")
    assert [line[:11] for line in table.problems([*rows, stranger])] == ["unexpected:"]
    failed = [replace(rows[0], passed=False), *rows[1:]]
    assert [line[:7] for line in table.problems(failed)] == ["failed:"]
