"""Paired differences of tau between an arm and a reference on the same prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xpress_exp.metric import TauDifference, tau_difference
from xpress_exp.report.collect import ResultRow
from xpress_exp.types import SampleTrace


@dataclass(frozen=True)
class PairedDifference:
    """tau of `row` minus tau of `reference` on the same prompts, task, temperature and seed."""

    row: ResultRow
    reference: ResultRow
    tau: TauDifference


def differences(rows: Sequence[ResultRow], reference_arm: str = "none") -> list[PairedDifference]:
    """Every measured row against the row of `reference_arm` at equal task, temperature, draft
    temperature, verifier, block size and seed.

    Of several such references the one trained by the same recipe is taken; rows without a partner
    are left out.
    """
    usable = [row for row in rows if row.has_results]
    references: dict[tuple[Any, ...], list[ResultRow]] = {}
    for row in usable:
        if row.arm == reference_arm:
            references.setdefault(_conditions(row), []).append(row)
    found = []
    for row in usable:
        candidates = references.get(_conditions(row), [])
        alike = [item for item in candidates if item.recipe == row.recipe] or candidates
        if row.arm != reference_arm and len(alike) == 1:
            gap = tau_difference(_traces(row), _traces(alike[0]))
            found.append(PairedDifference(row, alike[0], gap))
    return found


def _conditions(row: ResultRow) -> tuple[Any, ...]:
    fair = (row.task, row.temperature, row.draft_temperature, row.verifier)
    return (*fair, row.block_size, row.seed)


def _traces(row: ResultRow) -> dict[str, SampleTrace]:
    return {record.prompt_id: record.arm for record in row.records}
