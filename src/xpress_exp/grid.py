"""From command-line overrides to the composed config of every grid point, before anything runs.

All use of Hydra's internals (its argument parser, the sweeper's split) is in this file;
constraints.txt pins the version.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.singleton import Singleton
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from xpress_exp.schema import settle

ROOT = "config"
VERSION_BASE = "1.3"


class ConfigError(ValueError):
    """The configuration is refused; `lines` name field, value and remedy, one problem each."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


@dataclass(frozen=True)
class Point:
    """One grid point: its settled config and the option chosen in each config group."""

    cfg: DictConfig
    choices: dict[str, str]


def config_dir() -> Path:
    """`conf/` of the checkout, or the copy inside an installed package."""
    package = Path(__file__).resolve().parent
    checkout = package.parents[1] / "conf"
    in_checkout = package.parent.name == "src" and (checkout / f"{ROOT}.yaml").is_file()
    return checkout if in_checkout else package / "conf"


def parse_arguments(arguments: Sequence[str]) -> tuple[list[str], bool, bool]:
    """Overrides, whether -m was given, and whether Hydra is only asked to show something."""
    found = get_args_parser().parse_args(list(arguments))
    shows = (found.help, found.hydra_help, found.cfg, found.info, found.shell_completion)
    return found.overrides, bool(found.multirun), any(shows)


@contextlib.contextmanager
def in_conf() -> Iterator[None]:
    """Context in which `compose` and `declared` read the project's conf/; a Hydra application
    around it finds its own state again."""
    outer = Singleton._instances.pop(GlobalHydra, None)
    try:
        with initialize_config_dir(
            str(config_dir()), version_base=VERSION_BASE, job_name="xpress_exp"
        ):
            yield
    finally:
        if outer is not None:
            Singleton._instances[GlobalHydra] = outer


def expand(overrides: Sequence[str], multirun: bool = False) -> tuple[list[Point], bool]:
    """All grid points in the order Hydra will run them, and whether they form a sweep.

    Must run inside `in_conf()`. Raises ConfigError when a point cannot be composed.
    """
    parsed = _parse(overrides)
    about_hydra = [
        override.input_line or ""
        for override in parsed
        if override.key_or_group.split(".")[0].split("/")[0] in ("hydra", "experiment")
        and not override.is_sweep_override()
    ]
    root = _compose(about_hydra)
    is_sweep = multirun or root.hydra.mode == RunMode.MULTIRUN
    _refuse_stray_sweeps(parsed, is_sweep)
    if not is_sweep:
        return [_point(overrides)], False
    params = [f"{key}={value}" for key, value in (root.hydra.sweeper.params or {}).items()]
    return [_point(job) for job in _split([*params, *overrides])], True


def compose_points(overrides: Sequence[str], multirun: bool = False) -> list[DictConfig]:
    """Settled configs of all grid points of a command line, unchecked; for tests and tools."""
    with in_conf():
        return [point.cfg for point in expand(overrides, multirun)[0]]


def declared(name: str) -> dict[str, Any] | None:
    """Content of one conf file, e.g. 'head/xpress', or None when there is none."""
    repository = GlobalHydra.instance().config_loader().repository  # type: ignore[attr-defined]
    found = repository.load_config(name)
    if found is None:
        return None
    content: Any = OmegaConf.to_container(found.config, resolve=False)
    group, _, _ = name.rpartition("/")
    return content.get(group, {}) if found.header.get("package") == "_global_" else content


def _split(overrides: Sequence[str]) -> list[list[str]]:
    """The sweeper's own expansion: one list of plain overrides per job."""
    return BasicSweeper.split_arguments(_parse(overrides), None)[0]


def _parse(overrides: Sequence[str]) -> list[Override]:
    parser = OverridesParser.create()
    parsed = []
    for text in overrides:
        try:
            parsed += parser.parse_overrides([text])
        except HydraException as error:
            reason = _one_line(error)
            raise ConfigError(
                [f"{text} cannot be read ({reason}); write key=value, lists as 'key=[1,2]'"]
            ) from error
    return parsed


def _refuse_stray_sweeps(parsed: Sequence[Override], is_sweep: bool) -> None:
    for override in parsed:
        if not override.is_sweep_override():
            continue
        if override.key_or_group == "experiment":
            # Hydra would drop the experiments' own grids without a word.
            raise ConfigError([f"{override.input_line}: run one experiment after another"])
        if not is_sweep:
            raise ConfigError([f"{override.input_line} is a grid; add -m, or give one value"])
        if not override.is_discrete_sweep():
            raise ConfigError([f"{override.input_line}: a grid lists its values, as in 1,2,4"])


def _point(overrides: Sequence[str]) -> Point:
    cfg = _compose(overrides)
    choices = _choices(cfg)
    with open_dict(cfg):
        del cfg["hydra"]
    return Point(settle(cfg), choices)


def _choices(cfg: DictConfig) -> dict[str, str]:
    """Config group -> chosen option."""
    return {
        group: choice
        for group, choice in cfg.hydra.runtime.choices.items()
        if not group.startswith("hydra/") and group != "experiment"
    }


def _compose(overrides: Sequence[str]) -> DictConfig:
    try:
        return compose(ROOT, list(overrides), return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError([_explain(error, overrides)]) from error


def _explain(error: Exception, overrides: Sequence[str]) -> str:
    """A composition error as one line with what to write instead."""
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        return f"{group}={option} is not an option of {group}; {suggest(option, error.options)}"
    culprit = re.search(r"Could not override '([^']+)'", str(error))
    if culprit is None:
        return _one_line(error)
    given = _given(culprit[1], overrides)
    if culprit[1] == "experiment":
        return f"{given}: an experiment is added, not overridden; write +{given}"
    rest = _without(given, overrides)
    return (
        f"{given}: {no_such_key(culprit[1], _choices(rest), flatten(_unresolved(rest), '', True))}"
    )


def _given(key: str, overrides: Sequence[str]) -> str:
    """The override as the user typed it."""
    return next((text for text in overrides if text.lstrip("+~").split("=")[0] == key), key)


def _without(given: str, overrides: Sequence[str]) -> DictConfig:
    """The config beside a misspelt override; the defaults when other overrides fail as well."""
    try:
        return compose(
            ROOT, [text for text in overrides if text != given], return_hydra_config=True
        )
    except (HydraException, OmegaConfBaseException):
        return compose(ROOT, return_hydra_config=True)


def no_such_key(key: str, choices: dict[str, str], known: Sequence[str]) -> str:
    """'there is no key ...' with the option that lacks it and a suggestion."""
    group = key.split(".")[0]
    where = f" with {group}={choices[group]}" if group in choices else ""
    return f"there is no key {key}{where}; {suggest(key, known)}"


def _unresolved(cfg: DictConfig) -> dict[str, Any]:
    """The config without Hydra's own part as plain values, interpolations kept as text."""
    content: Any = OmegaConf.to_container(cfg, resolve=False)
    return {key: value for key, value in content.items() if key != "hydra"}


def flatten(content: dict[str, Any], prefix: str = "", with_inner: bool = False) -> list[str]:
    """Dotted keys of all leaves (lists are leaves), and of the inner nodes if asked."""
    keys: list[str] = []
    for name, value in content.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict) and value:
            keys += [path] if with_inner else []
            keys += flatten(value, f"{path}.", with_inner)
        else:
            keys.append(path)
    return keys


def closest(word: Any, options: Sequence[str]) -> str | None:
    """The option that `word` most likely meant, or None."""
    near = difflib.get_close_matches(str(word), options, n=1, cutoff=0.6)
    near = near or [name for name in options if name.rpartition(".")[2] == str(word)]
    return near[0] if near else None


def suggest(word: str, options: Sequence[str]) -> str:
    """'did you mean X?' for a near miss, and the options unless they are many."""
    near = closest(word, options)
    listed = f"options: {', '.join(options)}" if len(options) < 25 else ""
    if near is None:
        return listed or "--cfg job shows all keys"
    return f"did you mean {near}?" + (f" ({listed})" if listed else "")


def _one_line(error: Exception) -> str:
    """The message without line breaks and without a link to another project's manual."""
    return " ".join(str(error).split()).partition(" See http")[0]
