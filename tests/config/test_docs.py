"""The documentation names what exists: links, make targets, config groups, columns, commands."""

from __future__ import annotations

import ast
import math
import re
import shlex
from pathlib import Path

import pytest
import yaml

from xpress_exp import grid
from xpress_exp.check import refuse_problems

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "xpress_exp"
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "experiments").rglob("*.md")]
)
EXPERIMENTS = {path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml")}
# In the guides, the name of the reader's own head or experiment.
PLACEHOLDER = "mine"


def text_of(*names: str) -> str:
    return "\n".join((ROOT / name).read_text(encoding="utf-8") for name in names)


def fenced(text: str) -> list[str]:
    """Contents of the code blocks."""
    return re.findall(r"^```[a-z]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    """The text without its code blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def slugs(page: Path) -> set[str]:
    """Anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in headings}


def commands(page: Path) -> list[str]:
    """Arguments of every `python -m xpress_exp` in a page's code blocks; comments are cut off."""
    found = []
    for block in fenced(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            start, _, arguments = line.partition("python -m xpress_exp")
            if arguments and not start.strip():
                found.append(arguments)
    return found


COMMANDS = sorted({line for page in PAGES for line in commands(page) if PLACEHOLDER not in line})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text(encoding="utf-8")))
    local = [link for link in links if not link.startswith(("http://", "https://"))]
    for link in local:
        name, _, anchor = link.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in slugs(file), f"{link} names no heading"


def test_make_targets_exist() -> None:
    known = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    names = [page.relative_to(ROOT).as_posix() for page in PAGES]
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", text_of(*names), re.MULTILINE))
    assert {"demo", "test"} <= named
    assert named <= known


def test_every_config_group_is_explained() -> None:
    groups = {path.name for path in (ROOT / "conf").iterdir() if path.is_dir()}
    named = set(re.findall(r"`([a-z]+)[`=]", text_of("README.md", "docs/glossary.md")))
    assert groups <= named


def result_columns() -> list[str]:
    """Columns of results.csv as report/collect.py declares them, read without importing torch."""
    tree = ast.parse((SOURCE / "report" / "collect.py").read_text(encoding="utf-8"))
    [row] = [
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ResultRow"
    ]
    [left_out] = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NOT_COLUMNS"
    ]
    fields = [ast.unparse(node.target) for node in row.body if isinstance(node, ast.AnnAssign)]
    return [name for name in fields if name not in left_out]


def test_every_column_is_defined_in_order() -> None:
    section = text_of("docs/measure.md").split("\n## Columns\n")[1]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == result_columns()


def test_decisions_are_numbered_once_and_listed() -> None:
    folder = ROOT / "docs" / "adr"
    files = sorted(path for path in folder.glob("*.md") if path.name != "README.md")
    assert [path.name[:4] for path in files] == [f"{n:04d}" for n in range(1, len(files) + 1)]
    listed = re.findall(
        r"^\| \[(\d{4})\]\(([^)]+)\) \| (.+) \|$", text_of("docs/adr/README.md"), re.M
    )
    titles = [path.read_text(encoding="utf-8").splitlines()[0] for path in files]
    assert [(f"# {number} {title}", name) for number, name, title in listed] == [
        (title, path.name) for title, path in zip(titles, files, strict=True)
    ]


def test_decisions_say_context_choice_and_cost() -> None:
    for path in (ROOT / "docs" / "adr").glob("0*.md"):
        text = path.read_text(encoding="utf-8")
        places = [text.find(f"**{word}.**") for word in ("Context", "Choice", "Cost")]
        assert -1 not in places, path.name
        assert places == sorted(places), path.name


def test_named_experiments_exist() -> None:
    text = text_of("README.md", "experiments/README.md")
    named = set(re.findall(r"experiment=(\w+)", text)) | set(re.findall(r"experiments/(\w+)", text))
    # `custom` is where command lines without an experiment report to.
    assert named - {"custom", "README"} <= EXPERIMENTS


def test_every_experiment_is_in_the_ledger_and_every_folder_tells_its_command() -> None:
    ledger = re.findall(r"^\| \[(\w+)\]\((\w+)/", text_of("experiments/README.md"), re.M)
    # A smoke test claims nothing.
    assert {name for name, _ in ledger} == EXPERIMENTS - {"tiny"}
    folders = {path.parent.name for path in (ROOT / "experiments").glob("*/README.md")}
    assert {folder for _, folder in ledger} == folders
    for name, folder in ledger:
        assert f"+experiment={name}" in text_of(f"experiments/{folder}/README.md")


@pytest.mark.parametrize("name", ["demo", "heads_cpu", "drafter"])
def test_the_cost_of_an_experiment_is_told_as_it_is(name: str) -> None:
    told = " ".join(text_of(f"experiments/{name}/README.md").split())
    settings = yaml.safe_load(text_of(f"conf/experiment/{name}.yaml"))
    assert f"{settings['optim']['max_steps']} steps" in told
    assert str(settings["data"]["source"]["num_prompts"]) in told
    if "decode" in settings:
        assert f"{settings['decode']['num_prompts']} held-out prompts" in told
        assert f"at most {settings['decode']['max_new_tokens']} tokens" in told
        sizes = [
            values.count(",") + 1
            for values in map(str, settings["hydra"]["sweeper"]["params"].values())
        ]
        assert len(sizes) == 1 or f"{math.prod(sizes)} points" in told


@pytest.mark.parametrize("line", COMMANDS)
def test_documented_commands_are_legal(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The files that a reader names do not exist here.
    monkeypatch.setattr("xpress_exp.combination.is_missing", lambda _path: False)
    arguments = shlex.split(line, comments=True)
    overrides, multirun, _ = grid.parse_arguments(arguments)
    with grid.in_conf():
        refuse_problems(grid.expand(overrides, multirun)[0])


def test_yaml_of_the_guides_reads_as_yaml() -> None:
    blocks = [
        block
        for page in (ROOT / "docs" / "guide").glob("*.md")
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.M | re.S)
    ]
    assert blocks
    assert all(isinstance(yaml.safe_load(block), dict) for block in blocks)
