"""Run every benchmark in turn and write results.json and RESULTS.md.

    python benchmarks/bench.py [--only NAME ...] [--quick] [--out FOLDER]

One after the other in processes of their own: they share two cores. A script that is missing or
fails leaves its figures empty with the reason, the others still run, and the exit status is 1. With
--only the figures of the other scripts are kept, and not asked for. --quick measures few rounds and
writes nothing unless --out names a folder.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bars import FIGURES
from table import markdown

from xpress_exp.run_dir import provenance, read_json, write_json, write_text

HERE = Path(__file__).parent
ABOUT = "_about"
FIELDS = ("value", "low", "high", "command", "note")
EXPECTED_SECONDS = 90.0
REASON_LENGTH = 300

Entry = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What one script reported. reason: why it failed, '' when it did not."""

    name: str
    figures: Mapping[str, Entry] = field(default_factory=dict)
    reason: str = ""
    seconds: float = 0.0


def command_of(name: str) -> str:
    return f"python benchmarks/{name}.py"


def number(value: object) -> float | None:
    """A finite number, or None for what JSON has no number for."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < float("inf") else None


def cleaned(name: str, entry: Mapping[str, Any]) -> Entry:
    """The entry with exactly FIELDS; nan and infinity are None."""
    numbers = {key: number(entry.get(key)) for key in FIELDS[:3]}
    return {
        **numbers,
        "command": str(entry.get("command") or command_of(name)),
        "note": str(entry.get("note") or ""),
    }


def empty(name: str, reason: str) -> Entry:
    """A figure that could not be measured."""
    return cleaned(name, {"note": reason})


def merged(old: Mapping[str, Any], outcome: Outcome) -> dict[str, Any]:
    """`old` with the outcome's figures in place of all that its script had reported before.

    A figure that the script owes and did not report is empty with the reason.
    """
    name, owed = outcome.name, FIGURES.get(outcome.name, {})
    kept = {
        key: entry
        for key, entry in old.items()
        if key == ABOUT
        or (key not in owed and entry["command"].split(" --")[0] != command_of(name))
    }
    reason = outcome.reason or f"{name}.py did not report it"
    missing = {key: empty(name, reason) for key in owed}
    found = {key: cleaned(name, entry) for key, entry in outcome.figures.items()}
    return kept | missing | found


def problems(results: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """One line per figure that one of the scripts owes and that has no value."""
    lines = []
    for name in names:
        for key in FIGURES[name]:
            entry = results.get(key)
            if entry is None:
                lines.append(f"{key}: never measured; run {command_of(name)}")
            elif entry["value"] is None:
                lines.append(f"{key}: {entry['note']}")
    return lines


def last_words(text: str) -> str:
    """The last line that says something, shortened."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:REASON_LENGTH] if lines else "no output"


def run(name: str, quick: bool, folder: Path = HERE) -> Outcome:
    """Run one script in a process of its own; what it prints is shown."""
    script = folder / f"{name}.py"
    if not script.exists():
        return Outcome(name, reason=f"{command_of(name)} does not exist")
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "figures.json"
        command = [sys.executable, str(script), "--json", str(file), *["--quick"][: int(quick)]]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        seconds = time.perf_counter() - begun
        if done.returncode != 0:
            sys.stderr.write(done.stderr)
            reason = f"{command_of(name)} failed ({done.returncode}): {last_words(done.stderr)}"
            return Outcome(name, reason=reason, seconds=seconds)
        try:
            figures = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            return Outcome(name, reason=f"{command_of(name)} wrote no figures ({error})")
    return Outcome(name, figures, seconds=seconds)


def processor() -> str:
    """Name of the CPU as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def about(old: Mapping[str, Any], outcome: Outcome) -> dict[str, Any]:
    """Machine and versions of the latest script; commit, day and seconds of every script."""
    facts = provenance()
    own = {
        "commit": facts["commit"],
        "dirty": facts["dirty"],
        "day": time.strftime("%Y-%m-%d", time.gmtime()),
        "seconds": round(outcome.seconds, 1),
        "reason": outcome.reason,
    }
    shared = {key: facts[key] for key in ("python", "packages", "machine", "cpu_count")}
    return {
        **shared,
        "processor": processor(),
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
        "scripts": {**old.get("scripts", {}), outcome.name: own},
    }


def remaining(names: Sequence[str], told: Mapping[str, Any], spent: float, done: float) -> float:
    """Seconds that `names` will still take: as long as the last time, scaled by how the scripts
    of this run did against their last time (spent of done expected seconds)."""
    left = sum(expected(name, told) for name in names)
    return left * (spent / done if done else 1.0)


def expected(name: str, told: Mapping[str, Any]) -> float:
    """Seconds of a script the last time, or a guess."""
    return told.get("scripts", {}).get(name, {}).get("seconds") or EXPECTED_SECONDS


def measure(names: Sequence[str], results: dict[str, Any], quick: bool, out: Path | None) -> bool:
    """Run the scripts, write after each; returns whether all of them succeeded."""
    told, spent, done, fine = results.get(ABOUT, {}), 0.0, 0.0, True
    for index, name in enumerate(names):
        left = remaining(names[index:], told, spent, done)
        print(f"[{index + 1}/{len(names)}] {name}: about {left / 60:.1f} min left", flush=True)
        outcome = run(name, quick)
        spent, done = spent + outcome.seconds, done + expected(name, told)
        fine = fine and not outcome.reason
        if outcome.reason:
            print(outcome.reason, file=sys.stderr, flush=True)
        results[ABOUT] = about(results.get(ABOUT, {}), outcome)
        updated = merged(results, outcome)
        results.clear()
        results.update(updated)
        if out is not None:
            write_json(out / "results.json", results)
            write_text(out / "RESULTS.md", markdown(results))
    return fine


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 when every script asked for ran and gave all the figures it owes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", nargs="+", choices=sorted(FIGURES), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="few rounds: a smoke run")
    parser.add_argument("--out", type=Path, help="folder of results.json and RESULTS.md")
    options = parser.parse_args(arguments)
    out = options.out or (None if options.quick else HERE)
    file = None if out is None else out / "results.json"
    results = read_json(file) if file is not None and file.exists() else {}
    names = [name for name in FIGURES if not options.only or name in options.only]
    begun = time.perf_counter()
    fine = measure(names, results, options.quick, out)
    lacking = problems(results, names)
    print(f"{len(names)} scripts in {(time.perf_counter() - begun) / 60:.1f} min", flush=True)
    if out is None:
        print(markdown(results))
    for line in lacking:
        print(line, file=sys.stderr)
    return 0 if fine and not lacking else 1


if __name__ == "__main__":
    sys.exit(main())
