"""Rows of the comparison: which are expected, when one passes, how they are written down."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from torch import Tensor

ZLAB, SPECULATORS, TRANSFORMERS = "dflash", "speculators", "transformers"
BOTH_WAYS = ("forward", "gradient")
CONVENTIONS = ("fill_in", "shift")
TOLERANCE = {"forward": 1e-5, "gradient": 1e-9}  # float32 and float64


@dataclass(frozen=True)
class Key:
    """What a row compares. kind: 'forward', 'gradient', or 'by_hand' (the peer is shown wrong)."""

    peer: str
    subject: str
    convention: str
    kind: str


@dataclass(frozen=True)
class Case:
    """One row before the peer has answered.

    task names a function of the peer's worker, given `request` and `facts`. ours must equal the
    answer within `tolerance`; for 'by_hand', ours must equal `truth` and the answer `mistake`.
    """

    key: Key
    task: str
    request: Mapping[str, Tensor]
    ours: Mapping[str, Tensor]
    tolerance: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    truth: Mapping[str, Tensor] | None = None
    mistake: Mapping[str, Tensor] | None = None


@dataclass(frozen=True)
class Row:
    """One line of parity.json; error is relative to the largest entry of each tensor."""

    peer: str
    version: str
    subject: str
    convention: str
    kind: str
    max_relative_error: float
    tolerance: float
    passed: bool


def _expected() -> Iterable[Key]:
    for kind in BOTH_WAYS:
        yield Key(ZLAB, "drafter, one block", "fill_in", kind)
        yield Key(ZLAB, "drafter, packed blocks", "fill_in", kind)
    yield Key(ZLAB, "drafter, with cache", "fill_in", "forward")
    yield Key(ZLAB, "greedy generation", "fill_in", "forward")
    yield Key(SPECULATORS, "training mask", "any", "forward")
    for model, kind in product(("dflash", "dspark", "xpress"), BOTH_WAYS):
        yield Key(SPECULATORS, f"{model} backbone", "fill_in", kind)
    heads = ("vanilla", "gated", "rnn", "xpress")
    for head, convention, kind in product(heads, CONVENTIONS, BOTH_WAYS):
        yield Key(SPECULATORS, f"{head} head", convention, kind)
    losses = [f"{name} {loss} loss" for name in ("dflash", *heads) for loss in ("CE", "TV")]
    for loss, convention, kind in product(losses, CONVENTIONS, BOTH_WAYS):
        yield Key(SPECULATORS, loss, convention, kind)
    yield Key(SPECULATORS, "labels across documents", "fill_in", "by_hand")
    yield Key(SPECULATORS, "labels after the response", "shift", "by_hand")
    yield Key(SPECULATORS, "acceptance outside a reduced vocabulary", "fill_in", "by_hand")
    yield Key(TRANSFORMERS, "assisted generation", "any", "forward")


EXPECTED: tuple[Key, ...] = tuple(_expected())


def relative_error(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """Largest |found - wanted| of any tensor over that tensor's largest |wanted|.

    Infinite when names or shapes differ or a number is not finite.
    """
    if not wanted or found.keys() != wanted.keys():
        return float("inf")
    errors = []
    for name, value in wanted.items():
        if found[name].shape != value.shape or value.numel() == 0:
            return float("inf")
        wide = value.detach().double()
        difference = (found[name].detach().double() - wide).abs().max()
        error = float(difference / wide.abs().max().clamp_min(1e-300))
        errors.append(error if error == error else float("inf"))
    return max(errors)


def judge(case: Case, answer: Mapping[str, Tensor], version: str) -> Row:
    """The row of a case, given the peer's answer."""
    if case.truth is None or case.mistake is None:
        error = relative_error(case.ours, answer)
        passed = error <= case.tolerance
    else:
        ours = relative_error(case.ours, case.truth)
        error = max(ours, relative_error(answer, case.mistake))
        differ = relative_error(case.mistake, case.truth) > case.tolerance
        passed = error <= case.tolerance and differ
    key = case.key
    return Row(
        key.peer, version, key.subject, key.convention, key.kind, error, case.tolerance, passed
    )


def problems(rows: Sequence[Row], expected: Sequence[Key] = EXPECTED) -> list[str]:
    """One line for each failed, missing, unexpected or repeated row."""
    found = [Key(row.peer, row.subject, row.convention, row.kind) for row in rows]
    lines = [f"failed: {row}" for row in rows if not row.passed]
    lines += [f"missing: {key}" for key in expected if key not in found]
    lines += [f"unexpected: {key}" for key in found if key not in expected]
    return lines + [f"repeated: {key}" for key in set(found) if found.count(key) > 1]


def save(rows: Sequence[Row], path: Path) -> None:
    """Write the rows as JSON."""
    path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


def text(rows: Sequence[Row]) -> str:
    """The rows as a plain table."""
    lines = [f"{'peer':<20} {'subject':<40} {'convention':<10} {'kind':<9} error    limit    "]
    for row in rows:
        peer = f"{row.peer} {row.version}"
        verdict = "ok" if row.passed else "FAILED"
        lines.append(
            f"{peer:<20} {row.subject:<40} {row.convention:<10} {row.kind:<9} "
            f"{row.max_relative_error:<8.1e} {row.tolerance:<8.0e} {verdict}"
        )
    return "\n".join(lines)
