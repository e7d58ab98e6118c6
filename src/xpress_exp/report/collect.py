"""From expected points and stored records to result rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from xpress_exp.metric import (
    EvalRecord,
    Interval,
    acceptance,
    cost,
    read_records,
    speedup,
    tau_interval,
    tokens_per_second,
)
from xpress_exp.run_dir import ArtefactError, read_json
from xpress_exp.schema import COUPLED_VERIFIER

NAN = math.nan
OK = "ok"
MISSING = "missing"


@dataclass(frozen=True)
class ExpectedPoint:
    """One variant that an experiment asks for, whether or not it has results.

    variant: the facts of variant.json as the config says them. eval_dir holds variant.json and
    <task>.jsonl. failure: why it could not be run, None when nothing is known to have failed.
    settings: what tells the variant from others of its arm beyond the columns. recipe: equal for
    runs that differ in nothing but the head.
    """

    variant: Mapping[str, Any]
    temperatures: tuple[float, ...]
    eval_dir: Path
    failure: str | None = None
    settings: str = ""
    recipe: str = ""

    @property
    def records_file(self) -> Path:
        """Where the variant's records are."""
        return self.eval_dir / f"{self.variant['task']}.jsonl"


@dataclass(frozen=True)
class ResultRow:
    """One line of results.csv, column by column; nan and None are written empty."""

    experiment: str
    run: str
    arm: str
    head: str
    solver: str
    num_iterations: int | None
    verifier: str
    rank: int | None
    block_size: int
    seed: int
    task: str
    temperature: float
    draft_temperature: float
    num_prompts: int = 0
    num_tokens: int = 0
    num_rounds: int = 0
    num_accepted: int = 0
    num_drafted: int = 0
    tau: float = NAN
    tau_ci_low: float = NAN
    tau_ci_high: float = NAN
    tau_macro: float = NAN
    tau_uncut: float = NAN
    accepted_per_drafted: float = NAN
    break_even_tau: float = NAN
    tokens_per_second: float = NAN
    ar_tokens_per_second: float = NAN
    speedup: float = NAN
    speedup_ci_low: float = NAN
    speedup_ci_high: float = NAN
    draft_ms: float = NAN
    head_ms: float = NAN
    verify_ms: float = NAN
    token_mismatches: int | None = None
    accept_by_position: tuple[float, ...] = ()
    status: str = OK
    commit: str = ""
    settings: str = ""
    device: str = ""
    recipe: str = ""
    records: tuple[EvalRecord, ...] = field(default=(), repr=False, compare=False)

    @property
    def has_results(self) -> bool:
        """Whether any prompt was measured."""
        return self.num_prompts > 0


NOT_COLUMNS = {"device", "recipe", "records"}
COLUMNS = tuple(item.name for item in fields(ResultRow) if item.name not in NOT_COLUMNS)
IDENTITY = ("run", "arm", "head", "solver", "num_iterations", "rank", "block_size", "seed", "task")


def measured(records: Sequence[EvalRecord], same_text: bool) -> dict[str, Any]:
    """All measured columns of one variant at one temperature; same_text: whether it must decode
    what the baseline does."""
    arms = [record.arm for record in records]
    counts, price, speed = acceptance(arms), cost(records), speedup(records)
    interval: Interval = tau_interval(arms)
    diverged = sum(record.first_divergence is not None for record in records)
    return {
        "num_prompts": counts.num_prompts,
        "num_tokens": counts.num_tokens,
        "num_rounds": counts.num_rounds,
        "num_accepted": counts.num_accepted,
        "num_drafted": counts.num_drafted,
        "tau": counts.tau,
        "tau_ci_low": interval.low,
        "tau_ci_high": interval.high,
        "tau_macro": counts.tau_macro,
        "tau_uncut": counts.tau_uncut,
        "accepted_per_drafted": counts.accepted_per_drafted,
        "break_even_tau": price.break_even_tau,
        "tokens_per_second": tokens_per_second(arms),
        "ar_tokens_per_second": tokens_per_second([record.ar for record in records]),
        "speedup": speed.ratio,
        "speedup_ci_low": speed.interval.low,
        "speedup_ci_high": speed.interval.high,
        "draft_ms": price.draft_ms,
        "head_ms": price.head_ms,
        "verify_ms": price.verify_ms,
        "token_mismatches": diverged if same_text else None,
        "accept_by_position": counts.by_position,
    }


def _identity(point: ExpectedPoint, experiment: str, temperature: float) -> dict[str, Any]:
    """Columns that are known before anything is measured."""
    facts = point.variant
    wanted = facts["draft_temperature"]
    return {
        "experiment": experiment,
        **{name: facts[name] for name in IDENTITY},
        "verifier": "greedy" if temperature == 0 else facts["verifier"],
        "temperature": temperature,
        "draft_temperature": temperature if wanted == "same" else float(wanted),
        "settings": point.settings,
        "recipe": point.recipe,
    }


def _rows_of(point: ExpectedPoint, experiment: str) -> list[ResultRow]:
    """One row per temperature of a point; raises ArtefactError when its files are broken."""
    records = read_records(point.records_file)
    origin, expected = _origin(point) if records else ({}, 0)
    rows = []
    for temperature in point.temperatures:
        own = [record for record in records if record.temperature == temperature]
        same_text = temperature == 0 or point.variant["verifier"] == COUPLED_VERIFIER
        values = measured(own, same_text) if own else {}
        rows.append(
            ResultRow(
                **_identity(point, experiment, temperature),
                **values,
                **origin,
                status=_status(point, len(own), expected),
                records=tuple(own),
            )
        )
    return rows


def _status(point: ExpectedPoint, found: int, expected: int) -> str:
    """A complete measurement stands whatever failed later."""
    if found and found >= expected:
        return OK
    if point.failure is not None:
        return f"failed: {' '.join(point.failure.split())}"
    return f"partial: {found} of {expected} prompts" if found else MISSING


def _origin(point: ExpectedPoint) -> tuple[dict[str, Any], int]:
    """Commit ('-dirty' when the tree was) and device of the records, and how many prompts the
    task has (a file may hold fewer than the config asks for)."""
    path = point.eval_dir / "variant.json"
    facts = read_json(path)
    try:
        dirty = "-dirty" if facts["dirty"] else ""
        origin = {"commit": f"{facts['commit']}{dirty}", "device": facts["device"]}
        return origin, int(facts["num_prompts"])
    except KeyError as error:
        raise ArtefactError(f"{path} lacks {error}; delete its folder and rerun eval") from error


def collect(points: Sequence[ExpectedPoint], experiment: str) -> list[ResultRow]:
    """Rows of all expected points in their order: measured, partial, missing or failed.

    A point whose files cannot be read becomes a failed row: one broken file must not hide the
    others.
    """
    rows = []
    for point in points:
        try:
            rows.extend(_rows_of(point, experiment))
        except ArtefactError as error:
            rows.extend(
                ResultRow(**_identity(point, experiment, temperature), status=f"failed: {error}")
                for temperature in point.temperatures
            )
    return rows
