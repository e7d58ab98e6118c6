"""Which setting to serve with, predicted from the times and the acceptance of the measured rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xpress_exp.metric import (
    Curve,
    DraftProfile,
    Latencies,
    PassCost,
    Prediction,
    conditional_acceptance,
    cost,
    predictions,
    recommend,
)
from xpress_exp.report.collect import ResultRow
from xpress_exp.report.label import number, panels, variant_labels
from xpress_exp.types import nan_free_mean

CAVEAT = (
    "Predicted, not measured: acceptance of these very prompts, on which the setting is also "
    "chosen, and mean times; verify times between measured lengths are interpolated."
)


def recommendation(rows: Sequence[ResultRow]) -> list[str]:
    """One line per task and temperature that has a timed row: the setting of most predicted tokens
    per second over all variants and all verify lengths, beside plain decoding."""
    lines = []
    for (task, temperature), own in panels(rows).items():
        found = _predictions([row for row in own if row.num_rounds])
        if any(not item.unknown for item in found):
            lines.append(f"{task}, temperature {temperature:g}: {_told(recommend(found))}")
    return lines


def recommendation_section(rows: Sequence[ResultRow]) -> list[str]:
    """The lines as a section of RESULTS.md, empty without one."""
    lines = recommendation(rows)
    return (
        ["## Recommended setting", "\n".join(f"- {line}" for line in lines), CAVEAT]
        if lines
        else []
    )


def _predictions(rows: Sequence[ResultRow]) -> list[Prediction]:
    """Every variant at every verify length. A row is priced by its own drafter and head; the time
    of the target's pass is one curve through all rows and the plain step, its pass of one token."""
    steps = [step for row in rows for record in row.records for step in record.ar.step_ms]
    step_ms = nan_free_mean(sum(steps), len(steps))
    if not step_ms > 0:
        return []
    verify = _verify_curve(rows, step_ms)
    found: list[Prediction] = []
    for row, label in zip(rows, variant_labels(rows), strict=True):
        traces = [record.arm for record in row.records]
        rounds = [item for trace in traces for item in trace.rounds]
        price = cost(row.records)
        whole = sum(trace.decode_ms for trace in traces) / len(rounds)
        table = Latencies(
            step_ms=step_ms,
            verify=verify,
            draft_ms={row.block_size: price.draft_ms},
            # Measured at the row's own passes: nothing has to be told apart.
            head={(label, row.block_size): PassCost(price.head_ms, 0.0)},
            other_ms=whole - price.draft_ms - price.head_ms - price.verify_ms,
        )
        passes = sum(item.num_passes for item in rounds) / len(rounds)
        conditional = conditional_acceptance(traces)
        way = DraftProfile(label, row.num_iterations, row.block_size, conditional, passes)
        found += predictions(table, [way])
    return found


def terminal_recommendation(rows: Sequence[ResultRow]) -> str:
    """The lines for the terminal, with the caveat behind them; '' without one."""
    lines = [f"recommended: {line}" for line in recommendation(rows)]
    return "\n".join([*lines, CAVEAT]) if lines else ""


def _verify_curve(rows: Sequence[ResultRow], step_ms: float) -> Curve:
    """Mean verify time by tokens read, over all rounds of all rows."""
    times: dict[int, list[float]] = {}
    for row in rows:
        for record in row.records:
            for item in record.arm.rounds:
                times.setdefault(1 + item.drafted, []).append(item.verify_ms)
    points = {1: step_ms} | {size: sum(ms) / len(ms) for size, ms in times.items()}
    return Curve(tuple(sorted((size, ms) for size, ms in points.items() if ms > 0)))


def _told(best: Prediction) -> str:
    drafts = len(best.profile.conditional)
    setting = (
        f"{best.profile.head} (block size {best.profile.block_size}), verifying "
        f"{best.verify_length} of {drafts} drafts"
    )
    plain = best.tokens_per_second / best.speedup
    rates = (
        f"{number(best.tokens_per_second, 1)} tokens/s predicted against {number(plain, 1)} of "
        f"plain decoding ({number(best.speedup)} x)"
    )
    if math.isclose(best.speedup, 1.0) or best.speedup < 1:
        return f"no setting is predicted to beat plain decoding; the nearest is {setting}: {rates}."
    return f"{setting}: {rates}."
