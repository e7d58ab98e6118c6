"""Compares our models, heads, losses and decoding with packages that others published.

    python tests/parity/run.py [--folder .parity] [--output tests/parity/parity.json]

Builds one environment per peer, sends every case's weights and inputs there, and writes one row
per case. Exits with 1 when a row fails, is missing or is not expected.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import by_hand
import cases_dflash
import cases_speculators
import cases_transformers
from environment import DFLASH, SPECULATORS, Environment
from table import Case, Row, judge, problems, save, text
from tensors import read, write

HERE = Path(__file__).parent
# (name of the worker, its environment or None for our own, its cases)
PEERS: tuple[tuple[str, Environment | None, tuple[Callable[[], Iterable[Case]], ...]], ...] = (
    ("dflash", DFLASH, (cases_dflash.cases,)),
    ("speculators", SPECULATORS, (cases_speculators.cases, by_hand.cases)),
    ("transformers", None, (cases_transformers.cases,)),
)


def compare(worker: str, interpreter: Path, cases: list[Case], folder: Path) -> Iterator[Row]:
    """Rows of one peer; a case it leaves unanswered has no row. Raises CalledProcessError."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number, case in enumerate(cases):
        facts = {**case.facts, "task": case.task}
        write(folder / f"{number:03}.in.safetensors", case.request, facts)
    script = HERE / f"worker_{worker}.py"
    # Nothing is downloaded: an accidental look-up must fail, not hang.
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run([str(interpreter), str(script), str(folder)], check=True, env=offline)
    for number, case in enumerate(cases):
        answer = folder / f"{number:03}.out.safetensors"
        if answer.exists():
            found, about = read(answer)
            yield judge(case, found, about["version"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(".parity"))
    parser.add_argument("--output", type=Path, default=HERE / "parity.json")
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    rows: list[Row] = []
    for worker, environment, sources in PEERS:
        interpreter = environment.build(options.folder) if environment else Path(sys.executable)
        cases = [case for source in sources for case in source()]
        rows += compare(worker, interpreter, cases, options.folder / f"exchange-{worker}")
    save(rows, options.output)
    print(text(rows))
    found = problems(rows)
    print("\n".join(found) or f"all {len(rows)} rows agree")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
