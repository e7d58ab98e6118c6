"""What every benchmark shares: interleaved ratios with intervals, and the file of figures.

A benchmark is a script with a `figures(quick) -> dict[str, Figure]` function that ends in
`common.main(figures)`: `python benchmarks/NAME.py [--quick] [--json FILE]`. Times on shared CPUs
mean nothing alone: a figure is a ratio of times taken in turns within one process.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from xpress_exp.allocator import keep_freed_memory
from xpress_exp.metric.bootstrap import percentile_interval

RESAMPLES = 2000


@dataclass(frozen=True)
class Figure:
    """One number of the results: value, its 95 % interval (nan when there is none), the command
    that measures it, and what a reader must know."""

    value: float
    low: float = math.nan
    high: float = math.nan
    command: str = ""
    note: str = ""


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def in_turns(
    works: Mapping[str, Callable[[], object]], rounds: int, warmup: int = 1
) -> dict[str, list[float]]:
    """Seconds of each work in every round; the first one rotates, so that none is always first."""
    names = list(works)
    for _ in range(warmup):
        for name in names:
            works[name]()
    taken: dict[str, list[float]] = {name: [] for name in names}
    for round_index in range(rounds):
        start = round_index % len(names)
        for name in names[start:] + names[:start]:
            taken[name].append(seconds(works[name]))
    return taken


def ratio(
    over: Sequence[float], under: Sequence[float], note: str = "", scale: float = 1.0
) -> Figure:
    """scale x median over / median under of paired rounds, with a bootstrap interval over rounds.

    Medians, because a shared machine disturbs some rounds by a multiple of their time.
    """
    pairs = np.array([over, under], dtype=np.float64)
    draws = np.random.default_rng(0).integers(0, pairs.shape[1], (RESAMPLES, pairs.shape[1]))
    medians = np.median(pairs[:, draws], axis=-1)
    interval = percentile_interval(scale * medians[0] / medians[1])
    value = scale * statistics.median(over) / statistics.median(under)
    return Figure(value, interval.low, interval.high, note=note)


def main(figures: Callable[[bool], dict[str, Figure]]) -> None:
    """Measure, print one line per figure, and write them with --json."""
    parser = argparse.ArgumentParser(description=(sys.modules["__main__"].__doc__ or "").strip())
    parser.add_argument("--quick", action="store_true", help="few rounds: a smoke run")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    keep_freed_memory()
    script = Path(sys.argv[0])
    command = f"python benchmarks/{script.name}" + (" --quick" if options.quick else "")
    found = {
        name: asdict(figure) | {"command": figure.command or command}
        for name, figure in figures(options.quick).items()
    }
    for name, entry in found.items():
        print(
            f"{name:<48} {entry['value']:8.3f}  [{entry['low']:.3f}, {entry['high']:.3f}]"
            f"  {entry['note']}"
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
