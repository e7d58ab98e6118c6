"""report: tables and figures of an experiment from the records of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from omegaconf import DictConfig

from xpress_exp.report import (
    ExpectedPoint,
    collect,
    results_markdown,
    terminal_recommendation,
    terminal_table,
    write_csv,
    write_figures,
)
from xpress_exp.run_dir import ArtefactError, RunDir, read_json, write_text
from xpress_exp.schema import run_name, run_path, unique_points
from xpress_exp.stage.variant import eval_dir, recipe, variant_facts, varied_settings


def report(
    cfgs: Sequence[DictConfig], experiment: str, failures: Mapping[str, str] | None = None
) -> Path:
    """Print the table of all points and write results.csv, RESULTS.md and figures.

    failures: run name -> reason, for runs that just failed; a run's own failure.json counts too.
    Points without records are listed as missing. Returns <paths.experiments>/<experiment>. Raises
    ValueError when there is no point.
    """
    points = unique_points(cfgs)
    if not points:
        raise ValueError(f"experiment={experiment} has no point to report; give at least one")
    rows = collect(expected_points(points, failures or {}), experiment)
    folder = Path(points[0].paths.experiments) / experiment
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(folder / "results.csv", rows)
    figures = write_figures(folder, rows)
    write_text(folder / "RESULTS.md", results_markdown(experiment, rows, figures))
    shown = [terminal_table(rows), terminal_recommendation(rows), f"{folder}/RESULTS.md"]
    print("\n\n".join(part for part in shown if part))
    return folder


def expected_points(
    points: Sequence[DictConfig], failures: Mapping[str, str]
) -> list[ExpectedPoint]:
    """What the report looks for, one entry per distinct point."""
    return [
        ExpectedPoint(
            variant=variant_facts(cfg),
            temperatures=tuple(float(value) for value in cfg.decode.temperatures),
            eval_dir=eval_dir(cfg),
            failure=failures.get(run_name(cfg)) or _stored_failure(RunDir(run_path(cfg))),
            settings=settings,
            recipe=recipe(cfg),
        )
        for cfg, settings in zip(points, varied_settings(points), strict=True)
    ]


def _stored_failure(run: RunDir) -> str | None:
    """Reason in failure.json, or what is wrong with that file."""
    if not run.failure_file.exists():
        return None
    try:
        return str(read_json(run.failure_file)["reason"])
    except (ArtefactError, KeyError, TypeError) as error:
        return f"{run.failure_file} is unreadable ({error})"
