"""docs/properties.md names the tests and mutants that exist, and every mutant still applies."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
MUTANTS: list[dict[str, Any]] = tomllib.loads(
    (TESTS / "mutant" / "mutants.toml").read_text(encoding="utf-8")
)["mutant"]


def functions(file: Path) -> list[ast.FunctionDef]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return [node for node in tree.body if isinstance(node, ast.FunctionDef)]


def marked() -> dict[str, set[str]]:
    """Property id -> tests that carry its mark, as `folder/file.py::test`."""
    found = defaultdict(set)
    for file in TESTS.rglob("test_*.py"):
        for function in functions(file):
            for decorator in map(ast.unparse, function.decorator_list):
                match = re.fullmatch(r"pytest\.mark\.property\('(\w+)'\)", decorator)
                if match:
                    name = f"{file.relative_to(TESTS).as_posix()}::{function.name}"
                    found[match[1]].add(name)
    return dict(found)


def table() -> dict[str, tuple[set[str], set[str]]]:
    """Property id -> (tests, mutants) of its row in docs/properties.md."""
    text = (ROOT / "docs" / "properties.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (P\w+) \| .+? \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    return {
        name: (set(re.findall(r"`(.+?)`", tests)), set(re.findall(r"`(.+?)`", mutants)))
        for name, tests, mutants in rows
    }


def test_the_table_lists_exactly_the_marked_tests() -> None:
    assert {name: tests for name, (tests, _) in table().items()} == marked()


def test_the_table_lists_the_mutants_of_every_property() -> None:
    by_property = defaultdict(set)
    for mutant in MUTANTS:
        by_property[mutant["property"]].add(mutant["name"])
    del by_property["other"]
    assert {name: mutants for name, (_, mutants) in table().items()} == by_property
    assert len(MUTANTS) == len({mutant["name"] for mutant in MUTANTS})


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant["name"])
def test_every_mutant_changes_one_place_and_names_tests_that_exist(mutant: dict[str, Any]) -> None:
    """One that does not apply any more would be taken for a proof."""
    text = (ROOT / "src" / "xpress_exp" / mutant["file"]).read_text(encoding="utf-8")
    assert text.count(mutant["old"]) == 1 and mutant["old"] != mutant["new"]
    assert mutant["tests"]
    for test in mutant["tests"]:
        file, _, name = test.partition("::")
        assert name in [function.name for function in functions(ROOT / file)], test
