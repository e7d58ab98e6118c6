"""Makes the project wrong in one place at a time and checks that the tests named for it notice.

    python tests/mutant/run.py [--workers 2] [mutant ...]

Every mutant of mutants.toml is applied to a copy of src, tests and conf, never in place. It is
killed when every test that it names fails in at least one case. All named tests must first pass on
the unchanged copy. Without names all mutants run and RESULTS.md is written. Exit status 1: a mutant
survived, broke the collection of tests, or does not apply exactly once.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

from pool import PACKAGE, ROOT, Job, Outcome, make_copy, preload, run_all


@dataclass(frozen=True)
class Mutant:
    """One wrong line: `old` becomes `new` in a file of the package; `tests` are pytest node ids."""

    name: str
    property: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def mutated(self) -> str:
        """The changed file. Raises ValueError unless `old` occurs exactly once."""
        text = (ROOT / PACKAGE / self.file).read_text(encoding="utf-8")
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.name}: 'old' occurs {count} times in {self.file}, not once")
        return text.replace(self.old, self.new)


def load() -> list[Mutant]:
    """All mutants; raises ValueError when one does not apply exactly once."""
    file = ROOT / "tests" / "mutant" / "mutants.toml"
    entries = tomllib.loads(file.read_text(encoding="utf-8"))["mutant"]
    mutants = [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]
    for mutant in mutants:
        mutant.mutated()
    return mutants


def baseline(mutants: list[Mutant]) -> list[Job]:
    """The named tests on the unchanged copy, one job per test file."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    files = sorted({test.split("::")[0] for test in tests})
    groups = {file: tuple(t for t in tests if t.startswith(f"{file}::")) for file in files}
    return [Job(f"unchanged {file}", group) for file, group in groups.items()]


def survivors(mutant: Mutant, outcome: Outcome) -> list[str]:
    """Named tests that did not notice; all when the run does not count."""
    return [test for test in mutant.tests if outcome.problem or test not in outcome.failed]


def commit() -> str:
    """The commit of the checkout, and whether files differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    found = git("rev-parse", "--short", "HEAD") or "unknown"
    return found + (" and uncommitted changes" if git("status", "--porcelain", "src") else "")


def report(mutants: list[Mutant], outcomes: dict[str, Outcome], seconds: float) -> str:
    """RESULTS.md."""
    killed = sum(not survivors(m, outcomes[m.name]) for m in mutants)
    lines = [
        "# Mutants",
        "",
        f"`make mutants` at commit {commit()}: {len(mutants)} mutants, {killed} killed, "
        f"{len(mutants) - killed} survived, in {seconds:.0f} s. Each named test failed.",
        "",
        "| mutant | property | file | tests | killed |",
        "| --- | --- | --- | --- | --- |",
    ]
    for mutant in mutants:
        tests = "<br>".join(f"`{test.split('::')[1]}`" for test in mutant.tests)
        verdict = "**no**" if survivors(mutant, outcomes[mutant.name]) else "yes"
        lines.append(
            f"| `{mutant.name}` | {mutant.property} | `{mutant.file}` | {tests} | {verdict} |"
        )
    return "\n".join(lines) + "\n"


def check_unchanged(mutants: list[Mutant], folders: list[Path]) -> bool:
    """Whether every named test passes on the unchanged project."""
    fine = True
    for outcome in run_all(baseline(mutants), folders):
        if outcome.failed or outcome.problem:
            print(f"{outcome.job.name}: {sorted(outcome.failed)} {outcome.problem}", flush=True)
            fine = False
    return fine


def kill(mutants: list[Mutant], folders: list[Path]) -> dict[str, Outcome]:
    """Run every mutant; prints a line each."""
    jobs = [Job(m.name, m.tests, m.file, m.mutated()) for m in mutants]
    by_name = {mutant.name: mutant for mutant in mutants}
    outcomes: dict[str, Outcome] = {}
    for outcome in run_all(jobs, folders):
        name = outcome.job.name
        outcomes[name] = outcome
        missed = survivors(by_name[name], outcome)
        verdict = f"SURVIVED {' '.join(missed)} {outcome.problem}" if missed else "killed"
        print(f"{outcome.seconds:5.1f} s  {name}: {verdict}", flush=True)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description="Run mutants against the tests that kill them.")
    parser.add_argument("names", nargs="*", help="mutants to run; all without")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    try:
        mutants = load()
    except ValueError as error:
        print(error)
        return 1
    unknown = set(options.names) - {mutant.name for mutant in mutants}
    if unknown:
        parser.error(f"no mutant is called {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in mutants if not options.names or mutant.name in options.names]
    begun = time.monotonic()
    preload()
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        folders = [make_copy(Path(scratch, str(number))) for number in range(options.workers)]
        if not check_unchanged(chosen, folders):
            return 1
        print(f"unchanged: all named tests pass ({time.monotonic() - begun:.0f} s)", flush=True)
        outcomes = kill(chosen, folders)
    seconds = time.monotonic() - begun
    alive = [m.name for m in chosen if survivors(m, outcomes[m.name])]
    print(f"{len(chosen)} mutants, {len(alive)} survived, {seconds:.0f} s", *alive)
    if not options.names:
        text = report(chosen, outcomes, seconds)
        (ROOT / "tests" / "mutant" / "RESULTS.md").write_text(text, encoding="utf-8")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
