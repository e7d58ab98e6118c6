"""Figures of an experiment, PNG at 150 dpi; Matplotlib is imported only when one is drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xpress_exp.report.collect import ResultRow
from xpress_exp.report.label import grouped_by_label, panels
from xpress_exp.run_dir import atomic_path

# Okabe-Ito: distinct under the common forms of colour blindness.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
GREYS = ("#6E6E6E", "#B4B4B4")
MARKERS = "osD^vPX"
DASHES = ("-", "--", "-.", ":")
MAX_LINES = 10
DPI = 150


def arm_styles(rows: Sequence[ResultRow]) -> dict[str, tuple[str, str]]:
    """Colour and marker of each arm; arms without a head are grey."""
    bare = list(dict.fromkeys(row.arm for row in rows if row.head == "none"))
    headed = list(dict.fromkeys(row.arm for row in rows if row.head != "none"))
    styles = {arm: (GREYS[index % len(GREYS)], "o") for index, arm in enumerate(bare)}
    for index, arm in enumerate(headed):
        styles[arm] = (PALETTE[index % len(PALETTE)], MARKERS[index % len(MARKERS)])
    return styles


def seed_mean(rows: Sequence[ResultRow], name: str) -> tuple[float, float, float]:
    """Mean over seeds of column `name` with its error bar's ends: the bootstrap interval of a
    single seed, the smallest and largest seed otherwise."""
    values = [getattr(row, name) for row in rows]
    mean = float(np.mean(values))
    if len(rows) > 1:
        return mean, min(values), max(values)
    low, high = getattr(rows[0], f"{name}_ci_low"), getattr(rows[0], f"{name}_ci_high")
    known = not (math.isnan(low) or math.isnan(high))
    return (mean, low, high) if known else (mean, mean, mean)


def draw(
    path: Path,
    rows: Sequence[ResultRow],
    panel: Callable[[Any, list[ResultRow]], None],
    height: float,
) -> None:
    """One panel per task (row) and temperature (column); `height` inches each."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = panels(rows)
    tasks = list(dict.fromkeys(task for task, _ in groups))
    temperatures = sorted({temperature for _, temperature in groups})
    style: dict[Any, Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with pyplot.rc_context(style):
        figure, axes = pyplot.subplots(
            len(tasks),
            len(temperatures),
            figsize=(5.2 * len(temperatures), height * len(tasks)),
            squeeze=False,
            layout="constrained",
        )
        for row_index, task in enumerate(tasks):
            for column, temperature in enumerate(temperatures):
                axis, own = axes[row_index][column], groups.get((task, temperature), [])
                axis.set_title(f"{task}, T={temperature:g}", fontsize=9)
                if own:
                    panel(axis, own)
        with atomic_path(path) as temporary:
            figure.savefig(temporary, dpi=DPI, format="png")
        pyplot.close(figure)


def bar_panel(name: str, axis_label: str) -> Callable[[Any, list[ResultRow]], None]:
    """Bars of column `name` per variant; tau gets a mark at its break-even, speed-up at 1."""

    def panel(axis: Any, rows: list[ResultRow]) -> None:
        styles, groups = arm_styles(rows), grouped_by_label(rows, hide=("seed",))
        for place, own in enumerate(groups.values()):
            mean, low, high = seed_mean(own, name)
            axis.barh(place, mean, color=styles[own[0].arm][0], height=0.7)
            if high > low:
                error = [[max(mean - low, 0.0)], [max(high - mean, 0.0)]]
                axis.errorbar(mean, place, xerr=error, color="black", capsize=2, lw=1)
            if name == "tau":
                even = float(np.mean([row.break_even_tau for row in own]))
                for color, width in (("white", 4.0), ("black", 2.0)):
                    axis.plot([even, even], [place - 0.42, place + 0.42], color=color, lw=width)
        axis.set_yticks(range(len(groups)), list(groups))
        axis.invert_yaxis()
        if name == "speedup":
            axis.axvline(1.0, color="black", lw=1, ls=":")
        axis.set_xlabel(axis_label)

    return panel


def position_panel(axis: Any, rows: list[ResultRow]) -> None:
    """Acceptance by draft position, a line per variant (the best per arm when there are many)."""
    groups = grouped_by_label(rows, hide=("seed",))
    if len(groups) > MAX_LINES:
        best: dict[str, tuple[str, list[ResultRow]]] = {}
        for label, own in groups.items():
            current = best.get(own[0].arm)
            if current is None or seed_mean(own, "tau")[0] > seed_mean(current[1], "tau")[0]:
                best[own[0].arm] = (label, own)
        groups = dict(best.values())
        axis.set_title(f"{axis.get_title()} (best variant per arm)", fontsize=9)
    styles = arm_styles(rows)
    for index, (label, own) in enumerate(groups.items()):
        shortest = min(len(row.accept_by_position) for row in own)
        mean = np.mean([row.accept_by_position[:shortest] for row in own], axis=0)
        color, _ = styles[own[0].arm]
        marker = MARKERS[index % len(MARKERS)]
        places, dashes = range(1, shortest + 1), DASHES[index % len(DASHES)]
        axis.plot(places, mean, color=color, marker=marker, ls=dashes, ms=4, label=label)
    axis.set_ylim(0, 1.02)
    _finish_lines(axis, "draft position k", "rounds that accept draft k")


def iterations_panel(axis: Any, rows: list[ResultRow]) -> None:
    """tau against K, seeds averaged: a line per arm under jacobi, dashed the arm's sequential
    tau, dotted the arms without a head."""
    styles = arm_styles(rows)
    for label, own in grouped_by_label(rows, hide=("seed", "solver", "num_iterations")).items():
        color, marker = styles[own[0].arm]
        swept: dict[int, list[float]] = {}
        for row in own:
            if row.solver == "jacobi" and row.num_iterations is not None:
                swept.setdefault(row.num_iterations, []).append(row.tau)
        if swept:
            steps = sorted(swept)
            means = [float(np.mean(swept[step])) for step in steps]
            axis.plot(steps, means, color=color, marker=marker, ms=4, label=label)
        flat = [row.tau for row in own if row.solver == "sequential" or row.head == "none"]
        if flat:
            dotted = own[0].head == "none"
            name, style = (label, ":") if dotted else (f"{label} sequential", "--")
            axis.axhline(float(np.mean(flat)), color=color, ls=style, label=name)
    _finish_lines(axis, "Jacobi iterations K", "tau")


def _finish_lines(axis: Any, x_label: str, y_label: str) -> None:
    """Labels, whole numbers on the x axis, and a legend that hides no line."""
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def iterations_swept(rows: Sequence[ResultRow]) -> bool:
    """Whether any arm with a head was measured at two or more K."""
    swept: dict[str, set[int | None]] = {}
    for row in rows:
        if row.solver == "jacobi" and row.head != "none":
            swept.setdefault(row.arm, set()).add(row.num_iterations)
    return any(len(values) > 1 for values in swept.values())


def write_figures(folder: Path, rows: Sequence[ResultRow]) -> list[str]:
    """Draw what the rows allow into `folder`; returns the file names. Nothing without results."""
    usable = [row for row in rows if row.num_rounds > 0]
    if not usable:
        return []
    bars = max(len(grouped_by_label(own, hide=("seed",))) for own in panels(usable).values())
    height = 1.2 + 0.32 * bars
    draw(folder / "tau.png", usable, bar_panel("tau", "tau (black mark: break-even)"), height)
    names = ["tau.png", "accept_by_position.png"]
    draw(folder / "accept_by_position.png", usable, position_panel, 3.4)
    timed = [row for row in usable if not math.isnan(row.speedup)]
    if timed:
        draw(folder / "speedup.png", timed, bar_panel("speedup", "speed-up over AR"), height)
        names.append("speedup.png")
    if iterations_swept(usable):
        draw(folder / "tau_by_iterations.png", usable, iterations_panel, 3.4)
        names.append("tau_by_iterations.png")
    return names
