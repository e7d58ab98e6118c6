"""The one entry: check every grid point, then run the stages.

`python -m xpress_exp key=value ...` runs one point through its stages; a grid (`-m`, or an
experiment that carries one) trains its points one after another, then measures them side by side
and reports. Exit codes: 0 done, 1 something failed, 2 the configuration was refused, 130 and 143
interrupted. Nothing heavy is imported before a stage runs.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from omegaconf import DictConfig

from xpress_exp import check, grid
from xpress_exp.allocator import keep_freed_memory
from xpress_exp.run_dir import ArtefactError, RunDir, read_json, write_json
from xpress_exp.schema import STAGES, run_name, run_path, settle, unique_points

REFUSED, FAILED = 2, 1
INTERRUPTED, TERMINATED = 130, 143
# Wrong settings, missing or damaged files: their messages say what to do.
USER_ERRORS = (ValueError, ArtefactError, FileNotFoundError)


def main() -> int:
    """Run the command line in sys.argv; returns the exit code."""
    overrides, multirun, only_shows = grid.parse_arguments(sys.argv[1:])
    if only_shows:
        _hydra_app(lambda _cfg: None)
        return 0
    try:
        with grid.in_conf():
            points, is_sweep = grid.expand(overrides, multirun)
            check.refuse_problems(points)
    except grid.ConfigError as problem:
        for line in problem.lines:
            print(f"error: {line}", file=sys.stderr)
        return REFUSED
    try:
        with _logging_to_stdout(), _sigterm_raises():
            return Session([point.cfg for point in points], is_sweep).run()
    except KeyboardInterrupt:
        return _stopped(INTERRUPTED)
    except SystemExit as stop:
        return _stopped(_exit_code(stop))


class Session:
    """All jobs of one command. A job's failure is kept in its run directory, so that it reaches
    the report whichever process the job ran in."""

    def __init__(self, cfgs: Sequence[DictConfig], is_sweep: bool) -> None:
        self.cfgs = list(cfgs)
        self.is_sweep = is_sweep
        self.stages = [stage for stage in STAGES if stage in self.cfgs[0].stages]
        self.is_joint = is_sweep and bool(self.cfgs[0].decode.side_by_side)
        self.visited: set[Path] = set()
        self.has_failed = False

    @property
    def job_stages(self) -> list[str]:
        """Stages of one job; the others run once, after all jobs."""
        later = {"report"} | ({"eval"} if self.is_joint else set())
        return [stage for stage in self.stages if stage not in later]

    def run(self) -> int:
        """Run everything; returns the exit code."""
        if self.job_stages:
            # A report alone must still tell of the failures it finds.
            for cfg in self.cfgs:
                RunDir(run_path(cfg)).failure_file.unlink(missing_ok=True)
        keep_freed_memory()
        if self.job_stages:
            _hydra_app(self.job)
        succeeded = self.finish()
        return FAILED if self.has_failed or self.failures() or not succeeded else 0

    def job(self, cfg: DictConfig) -> None:
        """One grid point, called by Hydra. Never raises for a failed stage."""
        cfg = settle(cfg)
        number = HydraConfig.get().job.num if self.is_sweep else 0
        label = f"[{number + 1}/{len(self.cfgs)} {cfg.arm.name}]"
        run = run_path(cfg)
        # Points that differ in decoding only share a run: it is trained, or fails, once.
        stages = [s for s in self.job_stages if run not in self.visited or s == "eval"]
        if run in self.visited and self.failure_of(cfg):
            return
        self.visited.add(run)
        for stage in stages:
            call, kept_in = JOB_STAGES[stage], RunDir(run).failure_file
            if not attempt(label, stage, lambda call=call: call(cfg), kept_in):
                self.has_failed = True
                return

    def failure_of(self, cfg: DictConfig) -> str | None:
        """'stage: reason' of the run's failed job, or None."""
        path = RunDir(run_path(cfg)).failure_file
        if not path.exists():
            return None
        content = read_json(path)
        return f"{content['stage']}: {content['reason']}"

    def failures(self) -> dict[str, str]:
        """Run name -> 'stage: reason' of all failed jobs."""
        found = {run_name(cfg): self.failure_of(cfg) for cfg in self.cfgs}
        return {name: reason for name, reason in found.items() if reason is not None}

    def finish(self) -> bool:
        """Measure and report all points; the report comes whatever failed before."""
        points, succeeded = unique_points(self.cfgs), True
        trained = [cfg for cfg in points if self.failure_of(cfg) is None]
        if self.is_joint and "eval" in self.stages and trained:
            succeeded = self._joint("eval", lambda: _evaluate(trained))
        if "report" in self.stages and (self.is_sweep or trained):
            name, failures = str(self.cfgs[0].experiment), self.failures()
            reported = self._joint("report", lambda: _report(points, name, failures))
            succeeded = reported and succeeded
        return succeeded

    def _joint(self, stage: str, call: Callable[[], Any]) -> bool:
        """A stage over all points; what goes wrong there is no run's failure, and kept beside."""
        cfg = self.cfgs[0]
        kept_in = Path(cfg.paths.runs) / ".hydra" / f"{cfg.experiment}-{stage}.failure.json"
        kept_in.unlink(missing_ok=True)
        return attempt("[all]", stage, call, kept_in)


def attempt(label: str, stage: str, call: Callable[[], Any], kept_in: Path) -> bool:
    """Run a stage, telling of its start and end; returns whether it succeeded.

    Errors that the user can mend are told in one line, others with their traceback. Stage, reason
    and traceback of either are kept in the file `kept_in`, which the line names.
    """
    print(f"{label} {stage} ...", flush=True)
    start = time.monotonic()
    try:
        call()
    except Exception as error:  # the boundary of a job: the other jobs and the report go on
        cause = _cause(error)
        reason = " ".join(f"{cause}".split()) or type(cause).__name__
        trace = "".join(traceback.format_exception(error))
        is_mendable = isinstance(cause, USER_ERRORS)
        reason = reason if is_mendable else f"{type(cause).__name__}: {reason}"
        kept = _keep({"stage": stage, "reason": reason, "traceback": trace}, kept_in)
        shown = "" if is_mendable and kept else trace
        where = f" (traceback: {kept_in})" if kept else ""
        print(f"{shown}error: {label} {stage}: {reason}{where}", file=sys.stderr, flush=True)
        return False
    print(f"{label} {stage} done in {_duration(time.monotonic() - start)}", flush=True)
    return True


def _keep(failure: dict[str, str], path: Path) -> bool:
    """Whether the failure could be written: a full disk must not hide what went wrong."""
    try:
        write_json(path, failure)
    except OSError:
        return False
    return True


def _cause(error: BaseException) -> BaseException:
    """What a constructor raised, without Hydra's wrapping."""
    while isinstance(error, InstantiationException) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{seconds:.1f} s"


def _prepare(cfg: DictConfig) -> None:
    from xpress_exp.stage.prepare import prepare

    prepare(cfg)


def _train(cfg: DictConfig) -> None:
    from xpress_exp.stage.train import train

    train(cfg)


def _export(cfg: DictConfig) -> None:
    from xpress_exp.stage.export import export

    export(cfg)


def _evaluate(cfgs: list[DictConfig]) -> None:
    from xpress_exp.stage.eval import evaluate

    evaluate(cfgs)


def _report(cfgs: list[DictConfig], experiment: str, failures: dict[str, str]) -> None:
    from xpress_exp.stage.report import report

    report(cfgs, experiment, failures)


JOB_STAGES: dict[str, Callable[[DictConfig], None]] = {
    "prepare": _prepare,
    "train": _train,
    "export": _export,
    "eval": lambda cfg: _evaluate([cfg]),
}


@contextlib.contextmanager
def _logging_to_stdout() -> Iterator[None]:
    """Show what the stages log; Hydra's own logging is switched off in conf/config.yaml."""
    logger, handler = logging.getLogger("xpress_exp"), logging.StreamHandler(sys.stdout)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Let SIGTERM unwind the stack, so that stages can save; jobs not yet started never start."""

    def stop(_number: int, _frame: Any) -> NoReturn:
        raise SystemExit(TERMINATED)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit_code(stop: SystemExit) -> int:
    """Lightning ends an interrupted fit with exit(1), a terminated one with an empty code."""
    if isinstance(stop.__context__, KeyboardInterrupt):
        return INTERRUPTED
    return stop.code if isinstance(stop.code, int) else TERMINATED


def _stopped(code: int) -> int:
    if code in (INTERRUPTED, TERMINATED):
        print("stopped; the same command goes on from here", file=sys.stderr, flush=True)
    return code


def _hydra_app(task: Callable[[DictConfig], None]) -> None:
    """Hydra's own run, sweep and help, on the arguments in sys.argv."""
    hydra.main(
        version_base=grid.VERSION_BASE, config_path=str(grid.config_dir()), config_name=grid.ROOT
    )(task)()
