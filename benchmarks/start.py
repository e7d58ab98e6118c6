"""What a user waits for first, and the speed-up of the demo as it is committed.

python benchmarks/start.py [--quick]
"""

from __future__ import annotations

import csv
import math
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
from common import RESAMPLES, Figure, main, seconds

from xpress_exp.metric.bootstrap import percentile_interval

RESULTS = Path(__file__).parents[1] / "experiments" / "demo" / "example" / "results.csv"
DEMO = "make demo"


def help_seconds(rounds: int) -> Figure:
    """Median wall time of the help in fresh processes."""
    command = [sys.executable, "-m", "xpress_exp", "--help"]

    def work() -> None:
        subprocess.run(command, check=True, capture_output=True)

    work()
    taken = np.array([seconds(work) for _ in range(rounds)])
    draws = np.random.default_rng(0).integers(0, rounds, (RESAMPLES, rounds))
    interval = percentile_interval(np.median(taken[draws], -1))
    return Figure(
        statistics.median(taken.tolist()),
        interval.low,
        interval.high,
        note=f"seconds of `python -m xpress_exp --help`, {rounds} processes, files in memory",
    )


def demo_speedup(path: Path = RESULTS, arm: str = "xpress") -> Figure:
    """Speed-up of an arm at temperature 0 in a results.csv. Raises ValueError unless exactly one
    row fits."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["arm"] == arm]
    rows = [row for row in rows if float(row["temperature"]) == 0.0]
    if len(rows) != 1:
        raise ValueError(f"{path} has {len(rows)} rows of arm={arm} at temperature 0; expected one")
    [row] = rows
    value, low, high = (
        float(row[name]) if row[name] else math.nan
        for name in ("speedup", "speedup_ci_low", "speedup_ci_high")
    )
    note = (
        f"read from {path.parent.relative_to(path.parents[3])}/{path.name}, measured at commit "
        f"{row['commit'][:10]} on {row['num_prompts']} prompts; report only"
    )
    return Figure(value, low, high, DEMO, note)


def figures(quick: bool) -> dict[str, Figure]:
    return {
        "cli_help_seconds": help_seconds(2 if quick else 7),
        "end_to_end_speedup_demo_xpress": demo_speedup(),
    }


if __name__ == "__main__":
    main(figures)
