"""RESULTS.md from the figures of results.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bars import FIGURES, Bar, exponent_bar

ABOUT = "_about"
NOTHING = "-"
HEAD = (
    "# Results of `make bench`",
    "Times on shared CPUs mean nothing alone: a figure is a ratio of times taken in turns within "
    "one process, unless its note says otherwise. Brackets are 95 % intervals over rounds. "
    "`_over_` is our time over the other's, unless the name says rate (ours over theirs, more is "
    "better) or peak. `met` or `missed` looks at the value; `?` says that the interval holds the "
    "bar, so that a second run may decide otherwise.",
)


def bar_of(key: str) -> Bar | None:
    """The bar of a figure, None when it has none."""
    for owed in FIGURES.values():
        if key in owed:
            return owed[key]
    return exponent_bar(key)


def shown(value: float | None) -> str:
    """Three decimals below 100, none above."""
    if value is None:
        return NOTHING
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3f}"


def interval(entry: Mapping[str, Any]) -> str:
    if entry["low"] is None or entry["high"] is None:
        return NOTHING
    return f"{shown(entry['low'])} to {shown(entry['high'])}"


def verdict(entry: Mapping[str, Any], bar: Bar | None) -> str:
    """'met', 'missed', 'not measured' or '' without a bar."""
    if entry["value"] is None:
        return "not measured"
    if bar is None:
        return ""
    word = "met" if bar.met(entry["value"]) else "missed"
    low, high = entry["low"], entry["high"]
    if low is None or high is None or bar.met(low) == bar.met(high):
        return word
    return f"{word}?"


def cell(text: str) -> str:
    """Text that cannot break a table."""
    return " ".join(text.split()).replace("|", "\\|")


def line(key: str, entry: Mapping[str, Any]) -> str:
    bar = bar_of(key)
    note = entry["note"] or ("no reason is given" if verdict(entry, bar) == "missed" else "")
    parts = (
        f"`{key}`",
        shown(entry["value"]),
        interval(entry),
        NOTHING if bar is None else str(bar),
        verdict(entry, bar),
        cell(note),
    )
    return f"| {' | '.join(parts)} |"


def rows(entries: Mapping[str, Mapping[str, Any]]) -> str:
    header = ("figure", "value", "95 %", "bar", "", "note")
    rule = ("---", "---:", "---:", "---:", "---", "---")
    lines = [f"| {' | '.join(part)} |" for part in (header, rule)]
    return "\n".join([*lines, *(line(key, entry) for key, entry in entries.items())])


def script_of(key: str, entry: Mapping[str, Any]) -> str:
    """The script that owes the figure, else the one its command names."""
    for name, owed in FIGURES.items():
        if key in owed:
            return name
    return entry["command"].split("benchmarks/")[-1].split(".py")[0]


def machine(about: Mapping[str, Any]) -> str:
    packages = about.get("packages", {})
    versions = ", ".join(f"{name} {version}" for name, version in packages.items())
    return (
        f"{about.get('processor', 'unknown processor')}, {about.get('cpu_count', '?')} cores "
        f"({about.get('machine', '?')}); Python {about.get('python', '?')}; {versions}."
    )


def origin(facts: Mapping[str, Any]) -> str:
    if not facts:
        return "never run"
    dirty = " with uncommitted changes" if facts["dirty"] else ""
    return f"commit `{facts['commit'][:10]}`{dirty}, {facts['day']}, {facts['seconds']:.0f} s"


def summary(results: Mapping[str, Any]) -> str:
    """How many figures met their bar, and the names of those that did not."""
    words: dict[str, list[str]] = {"met": [], "missed": [], "not measured": []}
    for key, entry in results.items():
        if key != ABOUT:
            word = verdict(entry, bar_of(key)).rstrip("?")
            words.setdefault(word, []).append(f"`{key}`")
    told = [f"{len(words['met'])} figures met their bar"]
    for word in ("missed", "not measured"):
        if words[word]:
            told.append(f"{word}: {', '.join(words[word])}")
    return "; ".join(told) + "."


def markdown(results: Mapping[str, Any], images: Sequence[str] = ("scaling",)) -> str:
    """The whole page: machine, then one table per script in the order of FIGURES."""
    about = results.get(ABOUT, {})
    grouped: dict[str, dict[str, Any]] = {name: {} for name in FIGURES}
    for key in sorted(key for key in results if key != ABOUT):
        grouped.setdefault(script_of(key, results[key]), {})[key] = results[key]
    parts = [*HEAD, machine(about), summary(results)]
    for name, entries in grouped.items():
        if not entries:
            continue
        ordered = {key: entries[key] for key in FIGURES.get(name, {}) if key in entries}
        facts = about.get("scripts", {}).get(name, {})
        parts += [f"## {name}", f"`python benchmarks/{name}.py`, {origin(facts)}."]
        parts.append(rows(ordered | entries))
        if name in images:
            parts.append(f"![{name}]({name}.png)")
    return "\n\n".join(parts) + "\n"
