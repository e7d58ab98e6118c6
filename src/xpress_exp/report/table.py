"""results.csv and the tables of the terminal."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

from xpress_exp.report.collect import COLUMNS, OK, ResultRow
from xpress_exp.report.label import aligned, number, panels, variant_labels, with_interval
from xpress_exp.run_dir import atomic_path

HEADER = (
    "variant",
    "tau [95 %]",
    "tokens/rounds",
    "accepted/drafted",
    "break-even tau",
    "tokens/s",
    "AR tokens/s",
    "speed-up [95 %]",
    "draft+head+verify ms",
    "mismatches",
)


# What fits a terminal; RESULTS.md has all of HEADER.
TERMINAL = (0, 1, 3, 4, 5, 7, 9)


def cells(row: ResultRow, label: str) -> list[str]:
    """The row as text under HEADER; an incomplete row says so, its reason is listed elsewhere."""
    state = row.status.split(":")[0]
    if not row.has_results:
        return [label, state, *["-"] * (len(HEADER) - 2)]
    name = label if row.status == OK else f"{label} ({state})"
    parts = (row.draft_ms, row.head_ms, row.verify_ms)
    mismatches = row.token_mismatches
    return [
        name,
        with_interval(row.tau, row.tau_ci_low, row.tau_ci_high),
        f"{row.num_tokens}/{row.num_rounds}",
        number(row.accepted_per_drafted, 3),
        number(row.break_even_tau),
        number(row.tokens_per_second, 1),
        number(row.ar_tokens_per_second, 1),
        with_interval(row.speedup, row.speedup_ci_low, row.speedup_ci_high),
        "+".join(number(part, 1) for part in parts),
        "-" if mismatches is None else f"{mismatches}/{row.num_prompts}",
    ]


def panel_lines(rows: Sequence[ResultRow]) -> list[list[str]]:
    """Cells of the rows of one task and temperature."""
    labels = variant_labels(rows)
    return [cells(row, label) for row, label in zip(rows, labels, strict=True)]


def terminal_table(rows: Sequence[ResultRow]) -> str:
    """All rows as aligned text, one table per task and temperature, then what is not complete."""
    header = [HEADER[index] for index in TERMINAL]
    parts = []
    for (task, temperature), own in panels(rows).items():
        lines = [[line[index] for index in TERMINAL] for line in panel_lines(own)]
        parts.append(f"{task}, temperature {temperature:g}\n{aligned(header, lines)}")
    reasons = not_complete(rows)
    return "\n\n".join([*parts, "\n".join(reasons)] if reasons else parts)


def not_complete(rows: Sequence[ResultRow]) -> list[str]:
    """One line per row that is missing, partial or failed, with its reason."""
    return [
        f"{row.run}, {row.task}, temperature {row.temperature:g}: {row.status}"
        for row in rows
        if row.status != OK
    ]


def csv_cell(value: object) -> object:
    """None and nan as an empty cell, positions joined by ';', floats at full precision."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, tuple):
        return ";".join(repr(float(item)) for item in value)
    return repr(value) if isinstance(value, float) else value


def write_csv(path: Path, rows: Sequence[ResultRow]) -> None:
    """Write results.csv: a header and one line per row, atomically."""
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([csv_cell(getattr(row, name)) for name in COLUMNS] for row in rows)
