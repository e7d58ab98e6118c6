"""Evaluation records: one measured round of one variant, one JSON line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from xpress_exp.run_dir import SCHEMA_VERSION, ArtefactError
from xpress_exp.types import Round, SampleTrace


@dataclass(frozen=True)
class EvalRecord:
    """One prompt decoded by the baseline and by an arm in the same round.

    round: index of the measured round; position: the arm's place in its decoding order (the
    rotation can be checked from these two).
    """

    prompt_id: str
    domain: str
    temperature: float
    round: int
    position: int
    ar: SampleTrace
    arm: SampleTrace

    @property
    def key(self) -> tuple[str, float]:
        """What a file holds at most once."""
        return self.prompt_id, self.temperature

    @property
    def first_divergence(self) -> int | None:
        """Index of the first generated token where arm and baseline differ (the shorter output's
        length when it is a prefix), or None when equal. Meaningful at temperature 0 only."""
        return first_divergence(self.ar.tokens, self.arm.tokens)


def first_divergence(left: tuple[int, ...], right: tuple[int, ...]) -> int | None:
    """First index where two token sequences differ, None when they are equal."""
    if left == right:
        return None
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))


def to_line(record: EvalRecord) -> str:
    """The record as one JSON line, newline included."""
    content = {"schema_version": SCHEMA_VERSION, **asdict(record)}
    content["first_divergence"] = record.first_divergence if record.temperature == 0 else None
    return json.dumps(content, separators=(",", ":")) + "\n"


def trace_from_dict(content: Mapping[str, Any]) -> SampleTrace:
    """Inverse of dataclasses.asdict for a trace; raises TypeError on unknown or missing keys."""
    values = dict(content)
    values["tokens"] = tuple(values.get("tokens", ()))
    values["step_ms"] = tuple(values.get("step_ms", ()))
    values["rounds"] = tuple(Round(**item) for item in values.get("rounds", ()))
    return SampleTrace(**values)


def from_line(line: str) -> EvalRecord:
    """Inverse of to_line; raises ValueError, TypeError or KeyError on anything else."""
    content = json.loads(line)
    if content.pop("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"another schema version than {SCHEMA_VERSION}")
    del content["first_divergence"]
    content["ar"] = trace_from_dict(content["ar"])
    content["arm"] = trace_from_dict(content["arm"])
    return EvalRecord(**content)


def read_records(path: Path) -> list[EvalRecord]:
    """All records of a file, [] when it does not exist.

    Raises ArtefactError naming file and line when a line is torn, unreadable or repeated.
    """
    if not path.exists():
        return []
    records: dict[tuple[str, float], EvalRecord] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(True), 1):
        remedy = f"delete line {number} and rerun stages=[eval]"
        try:
            if not line.endswith("\n"):
                raise ValueError("the line is cut short")
            record = from_line(line)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ArtefactError(f"{path}:{number} is not a record ({error}); {remedy}") from error
        if record.key in records:
            raise ArtefactError(f"{path}:{number} repeats {record.key}; {remedy}")
        records[record.key] = record
    return list(records.values())
