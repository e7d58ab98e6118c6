"""Names of variants, numbers as text, and the grouping that tables and figures share."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from xpress_exp.report.collect import ResultRow

# How a varied setting is written; `{}` takes its value.
SETTINGS = {
    "solver": "{}",
    "num_iterations": "K={}",
    "verifier": "{}",
    "rank": "r={}",
    "block_size": "B={}",
    "draft_temperature": "draft T={}",
    "seed": "seed {}",
}


def variant_labels(rows: Sequence[ResultRow], hide: Collection[str] = ()) -> list[str]:
    """A label for each row: the arm, and every setting (except those of `hide`) that varies
    within the arm at the row's own task and temperature."""
    settings = {name: form for name, form in SETTINGS.items() if name not in hide}
    seen: dict[tuple[str, str, float, str], set[object]] = {}
    for row in rows:
        for name in settings:
            key = (row.arm, row.task, row.temperature, name)
            seen.setdefault(key, set()).add(getattr(row, name))
    labels = []
    for row in rows:
        varied = [
            form.format(getattr(row, name))
            for name, form in settings.items()
            if len(seen[row.arm, row.task, row.temperature, name]) > 1
            and getattr(row, name) is not None
        ]
        labels.append(" ".join([row.arm, *varied, row.settings]).strip())
    return labels


def grouped_by_label(
    rows: Sequence[ResultRow], hide: Collection[str]
) -> dict[str, list[ResultRow]]:
    """Rows that differ in the settings of `hide` only, under one label."""
    grouped: dict[str, list[ResultRow]] = {}
    for row, label in zip(rows, variant_labels(rows, hide), strict=True):
        grouped.setdefault(label, []).append(row)
    return grouped


def panels(rows: Sequence[ResultRow]) -> dict[tuple[str, float], list[ResultRow]]:
    """Rows by (task, temperature), in order of first appearance."""
    grouped: dict[tuple[str, float], list[ResultRow]] = {}
    for row in rows:
        grouped.setdefault((row.task, row.temperature), []).append(row)
    return grouped


def number(value: float | None, digits: int = 2) -> str:
    """Fixed-point text; '-' for None and nan."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.{digits}f}"


def with_interval(value: float, low: float, high: float, digits: int = 2) -> str:
    """'value [low, high]', without the interval when it is unknown."""
    if math.isnan(low) or math.isnan(high):
        return number(value, digits)
    return f"{number(value, digits)} [{number(low, digits)}, {number(high, digits)}]"


def aligned(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Plain text table: first column left, the others right aligned."""
    table = [list(header), *[list(line) for line in lines]]
    widths = [max(len(line[index]) for line in table) for index in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in table
    )


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Markdown table; bars inside cells are escaped."""

    def joined(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join([joined(header), joined(rule), *[joined(line) for line in lines]])
