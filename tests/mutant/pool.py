"""Runs tests on copies of the project, one forked process a job: torch is imported only once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = Path("src", "xpress_exp")
LIMIT_S = 180.0  # of one job


@dataclass(frozen=True)
class Job:
    """Tests to run in a copy with one file changed (or none)."""

    name: str
    tests: tuple[str, ...]
    file: str | None = None
    text: str = ""


@dataclass(frozen=True)
class Outcome:
    """failed: tests without their parameters. problem: why the run does not count."""

    job: Job
    failed: frozenset[str]
    seconds: float
    problem: str = ""


class FirstFailures:
    """A pytest plugin: notes which tests failed and skips the other cases of each."""

    def __init__(self) -> None:
        self.failed: set[str] = set()

    def pytest_runtest_protocol(self, item: Any) -> bool | None:
        return True if base_id(item.nodeid) in self.failed else None

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.add(base_id(report.nodeid))


def base_id(node_id: str) -> str:
    """A node id without its parameters."""
    return node_id.split("[")[0]


def preload() -> None:
    """Import once, before forking, what every test needs and no mutant touches."""
    os.environ.update({"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
    import hydra  # noqa: F401
    import lightning  # noqa: F401
    import pytest  # noqa: F401
    import torch
    from transformers import LlamaForCausalLM, Qwen3ForCausalLM  # noqa: F401

    torch.set_num_threads(1)


def run_tests(job: Job, folder: Path, result: Path) -> None:
    """In the child process: pytest on the copy; writes a JSON result."""
    import pytest

    os.chdir(folder)
    source = str(folder / "src")
    # No byte code: a changed file may have the size and the time of the one before it.
    sys.dont_write_bytecode = True
    os.environ.update({"PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"})
    sys.path.insert(0, source)
    log = os.open(result.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    watch = FirstFailures()
    options = ["-p", "no:cacheprovider", "--tb=short", f"--rootdir={folder}"]
    status = int(pytest.main([*options, *job.tests], plugins=[watch]))
    tested = getattr(sys.modules.get("xpress_exp"), "__file__", None)
    if tested is None or not Path(tested).is_relative_to(folder):
        status = -1
    result.write_text(json.dumps({"status": status, "failed": sorted(watch.failed)}))


def start(job: Job, folder: Path, result: Path) -> int:
    """Fork a child that runs the job; returns its process id."""
    result.unlink(missing_ok=True)
    process = os.fork()
    if process:
        return process
    os.setsid()
    code = 1
    try:
        run_tests(job, folder, result)
        code = 0
    finally:
        os._exit(code)


def finished(job: Job, result: Path, seconds: float) -> Outcome:
    """The outcome of a child that ended."""
    if not result.exists():
        return Outcome(job, frozenset(), seconds, f"the test process died; see {result}.log")
    read = json.loads(result.read_text())
    problem = ""
    if read["status"] not in (0, 1):
        problem = f"pytest ended with status {read['status']}\n" + tail(result)
    return Outcome(job, frozenset(read["failed"]), seconds, problem)


def tail(result: Path) -> str:
    lines = result.with_suffix(".log").read_text(errors="replace").splitlines()
    return "\n".join(lines[-15:])


def run_all(jobs: list[Job], folders: list[Path]) -> Iterator[Outcome]:
    """Run jobs, one at a time in each copy, and yield outcomes as they come."""
    waiting, free = list(reversed(jobs)), list(folders)
    running: dict[int, tuple[Job, Path, float]] = {}
    while waiting or running:
        while waiting and free:
            job, folder = waiting.pop(), free.pop()
            if job.file is not None:
                (folder / PACKAGE / job.file).write_text(job.text, encoding="utf-8")
            process = start(job, folder, folder / "result.json")
            running[process] = job, folder, time.monotonic()
        time.sleep(0.02)
        for process, (job, folder, begun) in list(running.items()):
            seconds = time.monotonic() - begun
            ended = os.waitpid(process, os.WNOHANG)[0] == process
            if not ended and seconds < LIMIT_S:
                continue
            if ended:
                yield finished(job, folder / "result.json", seconds)
            else:
                os.killpg(process, signal.SIGKILL)
                os.waitpid(process, 0)
                yield Outcome(job, frozenset(), seconds, f"not done after {LIMIT_S:.0f} s")
            if job.file is not None:
                shutil.copyfile(ROOT / PACKAGE / job.file, folder / PACKAGE / job.file)
            del running[process]
            free.append(folder)


def make_copy(folder: Path) -> Path:
    """src, tests, conf and the pytest settings."""
    leave = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in ("src", "tests", "conf"):
        shutil.copytree(ROOT / name, folder / name, ignore=leave)
    shutil.copyfile(ROOT / "pyproject.toml", folder / "pyproject.toml")
    return folder
