"""What a config may say: known keys, legal values, legal combinations.

Each problem becomes one line that names field, value and remedy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from xpress_exp.combination import COMBINATIONS
from xpress_exp.grid import ROOT, ConfigError, Point, closest, declared, flatten, no_such_key
from xpress_exp.rule import Rule, rule_for
from xpress_exp.schema import plain


def refuse_problems(points: Sequence[Point]) -> None:
    """Raise ConfigError with every distinct problem of all grid points. Inside `in_conf()`."""
    lines = [line for point in points for line in problems(point)]
    if lines:
        raise ConfigError(tuple(dict.fromkeys(lines)))


def problems(point: Point) -> list[str]:
    """Problems of one grid point: keys first, then values, then combinations."""
    expected = _declared_values(point.choices)
    found = _key_problems(point, expected)
    if found:
        return found
    try:
        values = plain(point.cfg)
    except OmegaConfBaseException as error:
        return [" ".join(str(error).split())]
    missing = sorted(OmegaConf.missing_keys(point.cfg))
    if missing:
        return [f"{key} has no value; add {key}=<value>" for key in missing]
    found = _value_problems(values, expected)
    if found:
        return found
    return [line for rule in COMBINATIONS if (line := rule.problem(point.cfg)) is not None]


def _declared_values(choices: dict[str, str]) -> dict[str, Any]:
    """Dotted key -> value in the file of the chosen option (interpolations as text)."""
    root = {
        key: value
        for key, value in (declared(ROOT) or {}).items()
        if key not in ("defaults", "hydra")
    }
    content = {
        **root,
        **{group: declared(f"{group}/{option}") for group, option in choices.items()},
    }
    return {key: _at(content, key) for key in flatten(content)}


def _key_problems(point: Point, expected: dict[str, Any]) -> list[str]:
    """Keys that the chosen options do not declare (`+key=` and experiment files can add them)."""
    content: Any = OmegaConf.to_container(point.cfg, resolve=False)
    present, known = flatten(content), list(expected)
    unknown = [key for key in present if key not in expected]
    removed = [key for key in known if key not in present]
    return [
        *(f"{key}: {no_such_key(key, point.choices, known)}" for key in unknown),
        *(f"{key} was removed; leave it in" for key in removed),
    ]


def _value_problems(values: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    return [
        _complaint(key, _at(values, key), rule)
        for key, default in expected.items()
        if not (rule := rule_for(key, default)).accepts(_at(values, key))
    ]


def _complaint(key: str, value: Any, rule: Rule) -> str:
    """For a list, the near miss is sought for its first item that is no option."""
    word, shown = value, value
    if isinstance(value, list):
        word = next((item for item in value if item not in rule.options), None)
        shown = f"[{','.join(str(item) for item in value)}]"
    near = closest(word, rule.options)
    return f"{key}={shown} must be {rule.wants}" + (f"; did you mean {near}?" if near else "")


def _at(content: dict[str, Any], key: str) -> Any:
    node: Any = content
    for part in key.split("."):
        node = node[part]
    return node
