"""conf/ as a whole: every file composes, names what exists, and fits the code that serves it."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import get_object

from xpress_exp.check import refuse_problems
from xpress_exp.grid import compose_points, config_dir, declared, expand, in_conf
from xpress_exp.schema import decode_science, run_name, unique_points

CONF = config_dir()
SOURCE = Path(inspect.getfile(refuse_problems)).parent
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
# Groups that third parties or the launch serve; `decode` and `arm` only set values.
WITHOUT_PACKAGE = {"trainer", "logger", "cluster", "experiment", "arm"}
OPTIONS = sorted(
    path.relative_to(CONF).with_suffix("").as_posix()
    for path in CONF.glob("*/*.yaml")
    if path.parent.name != "experiment"
)
# What the code, not the file, passes to a constructor.
FACTS = {"hidden_size", "vocab_size", "num_layers", "pad_token_id", "stop_token_ids"}
DRAFTER_USAGE = {
    "init",
    "block_size",
    "slot_convention",
    "num_unused_slots",
    "target_layer_ids",
    "draft_vocab",
}


def targets(node: Any, path: str = "") -> list[tuple[str, dict[str, Any]]]:
    """All nodes with a `_target_`, with their dotted path."""
    if not isinstance(node, dict):
        return []
    own = [(path, node)] if "_target_" in node else []
    return own + [hit for key, value in node.items() for hit in targets(value, f"{path}.{key}")]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiment_is_legal_and_its_runs_have_their_own_names(
    experiment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The prompts of a task by path are the user's to bring.
    monkeypatch.setattr("xpress_exp.combination.is_missing", lambda _path: False)
    with in_conf():
        points, _ = expand([f"+experiment={experiment}"])
        refuse_problems(points)
    cfgs = [point.cfg for point in points]
    assert {cfg.experiment for cfg in cfgs} == {experiment}
    unique = unique_points(cfgs)
    identities = {(run_name(cfg), repr(decode_science(cfg))) for cfg in cfgs}
    assert len(unique) == len(identities)
    by_name: dict[str, set[str]] = {}
    for cfg in cfgs:
        by_name.setdefault(run_name(cfg), set()).add(f"{cfg.arm.name} {cfg.head}")
    assert all(len(kinds) == 1 for kinds in by_name.values())


def test_every_experiment_folder_has_its_yaml() -> None:
    folder = CONF.parent / "experiments"
    assert {path.name for path in folder.glob("*/")} <= set(EXPERIMENTS)


def test_a_group_and_its_package_share_one_name() -> None:
    groups = {path.name for path in CONF.iterdir() if path.is_dir()}
    assert groups >= WITHOUT_PACKAGE
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert groups - WITHOUT_PACKAGE <= packages


@pytest.mark.parametrize("option", OPTIONS)
def test_option_has_a_name_and_its_target_takes_its_keys(option: str) -> None:
    with in_conf():
        content = declared(option)
    assert content is not None
    assert "name" in content
    group = option.split("/")[0]
    for path, node in targets(content):
        constructor = get_object(node["_target_"])
        keys = set(node) - {"_target_"} - ({"name"} if path == "" else set())
        keys -= (
            FACTS - set(inspect.signature(constructor).parameters) if group == "target" else set()
        )
        keys -= DRAFTER_USAGE if group == "drafter" else set()
        inspect.signature(constructor).bind_partial(**dict.fromkeys(keys))


def test_root_does_not_list_experiment() -> None:
    defaults = yaml.safe_load((CONF / "config.yaml").read_text())["defaults"]
    listed = {next(iter(entry)) for entry in defaults if isinstance(entry, dict)}
    assert "experiment" not in listed
    assert {path.name for path in CONF.iterdir() if path.is_dir()} - {"experiment"} <= listed


LIGHT = """
import sys
from xpress_exp import cli
sys.argv = ["xpress_exp", *{arguments}]
try:
    code = cli.main()
except SystemExit as stop:
    code = stop.code
names = {{"torch", "transformers", "lightning", "matplotlib", "datasets", "wandb"}}
heavy = sorted(names & set(sys.modules))
print(f"exit {{code}}, heavy {{heavy}}")
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--help"], 0), (["--cfg", "job"], 0), (["head.rank=0"], 2)],
    ids=["help", "cfg", "refused"],
)
def test_nothing_heavy_is_imported_before_a_stage(arguments: list[str], code: int) -> None:
    script = LIGHT.format(arguments=arguments)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == f"exit {code}, heavy []"


@pytest.mark.parametrize("folder", ["checkout", "elsewhere"])
def test_conf_is_found_in_a_checkout_and_in_an_installed_package(
    folder: str, tmp_path: Path
) -> None:
    """The wheel's layout is rebuilt from the build settings: package files plus forced includes."""
    site = SOURCE.parent
    if folder == "elsewhere":
        site = tmp_path / "site-packages"
        wheel = tomllib.loads((CONF.parent / "pyproject.toml").read_text())["tool"]["hatch"][
            "build"
        ]
        [package] = wheel["targets"]["wheel"]["packages"]
        assert CONF.parent / package == SOURCE
        for file in SOURCE.glob("*.py"):
            (site / SOURCE.name).mkdir(parents=True, exist_ok=True)
            shutil.copy(file, site / SOURCE.name)
        for source, destination in wheel["targets"]["wheel"]["force-include"].items():
            shutil.copytree(CONF.parent / source, site / destination)
    done = subprocess.run(
        [sys.executable, "-m", "xpress_exp", "--cfg", "job", "+experiment=demo"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert yaml.safe_load(done.stdout)["experiment"] == "demo"


def test_composing_inside_another_hydra_application_leaves_it_alone() -> None:
    with in_conf():
        outer = GlobalHydra.instance().hydra
        compose_points([])
        assert GlobalHydra.instance().hydra is outer
