"""RESULTS.md: what was measured, where, and what it says, in plain words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xpress_exp.metric import MIN_PROMPTS, acceptance
from xpress_exp.report.collect import ResultRow
from xpress_exp.report.difference import PairedDifference, differences
from xpress_exp.report.label import markdown, number, panels, variant_labels, with_interval
from xpress_exp.report.recommendation import recommendation_section
from xpress_exp.report.table import HEADER, not_complete, panel_lines

DEFINITIONS = (
    "tau = committed tokens / target verifications, bonus token included; the prefill's token and "
    "tokens cut by a stop token or the length limit are not counted.",
    "speed-up = time per token of autoregressive decoding / of the variant, same process, prompts "
    "interleaved; a variant pays off where tau exceeds break-even tau = (draft + head + verify) / "
    "one autoregressive step.",
)


def verdict(rows: Sequence[ResultRow]) -> str:
    """Whether speculative decoding beat autoregressive decoding in one panel, in one sentence."""
    timed = [
        (row, label)
        for row, label in zip(rows, variant_labels(rows), strict=True)
        if not math.isnan(row.speedup)
    ]
    if not timed:
        return "no variant has a measured speed, so nothing can be said about speed."
    best, label = max(timed, key=lambda item: item[0].speedup)
    shown = with_interval(best.speedup, best.speedup_ci_low, best.speedup_ci_high)
    name = f"the highest measured, {label}, decodes at {shown} times the baseline's speed"
    if len(timed) > 1:
        # The largest of many noisy numbers is too large on average.
        name += (
            f" (of {len(timed)} variants, chosen on the same prompts: its interval does not cover "
            "the choice)"
        )
    if math.isnan(best.speedup_ci_low):
        return (
            f"{name}; with {best.num_prompts} prompts (an interval needs {MIN_PROMPTS}) this does "
            "not show whether speculative decoding is faster."
        )
    if best.speedup_ci_low > 1:
        faster = sum(row.speedup_ci_low > 1 for row, _ in timed)
        return (
            f"speculative decoding beat autoregressive decoding: {name}; the interval of {faster} "
            f"of {len(timed)} variants lies above 1."
        )
    if best.speedup_ci_high < 1:
        # Even the luckiest variant lies below: the choice makes this claim only safer.
        return f"speculative decoding did not beat autoregressive decoding: {name}."
    return f"no difference from autoregressive decoding is shown: {name}."


def _origin(rows: Sequence[ResultRow]) -> str:
    """Commit, machine and number of prompts of all measured rows."""
    used = [row for row in rows if row.has_results]
    if not used:
        return "Nothing has been measured yet."
    commits = ", ".join(f"`{commit}`" for commit in sorted({row.commit for row in used}))
    devices = ", ".join(sorted({row.device for row in used}))
    counts = sorted({row.num_prompts for row in used})
    prompts = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"Commit {commits}; machine: {devices}; {prompts} prompts per row."


def _difference_section(found: Sequence[PairedDifference], reference: str) -> list[str]:
    """Paired differences of tau, one table over all panels."""
    if not found:
        return [f"No arm `{reference}` was measured beside another arm: no paired difference."]
    labels = variant_labels([item.row for item in found])
    lines = [
        [
            label,
            item.row.task,
            f"{item.row.temperature:g}",
            with_interval(item.tau.difference, item.tau.interval.low, item.tau.interval.high),
            str(item.tau.num_prompts),
        ]
        for item, label in zip(found, labels, strict=True)
    ]
    header = ("variant", "task", "temperature", f"tau minus tau of `{reference}` [95 %]", "prompts")
    return [markdown(header, lines)]


def _domain_section(rows: Sequence[ResultRow]) -> list[str]:
    """tau by domain of the prompts, for tasks that have several."""
    parts = []
    for (task, temperature), own in panels([row for row in rows if row.has_results]).items():
        domains = sorted({record.domain for row in own for record in row.records})
        if len(domains) < 2:
            continue
        lines = []
        for row, label in zip(own, variant_labels(own), strict=True):
            taus = [
                acceptance([item.arm for item in row.records if item.domain == domain]).tau
                for domain in domains
            ]
            lines.append([label, *[number(tau) for tau in taus]])
        title = f"{task}, temperature {temperature:g}"
        parts.append(f"{title}\n\n{markdown(('tau', *domains), lines)}")
    return ["## By domain", *parts] if parts else []


def results_markdown(experiment: str, rows: Sequence[ResultRow], figures: Sequence[str]) -> str:
    """Text of RESULTS.md for all rows of an experiment; `figures` are file names beside it."""
    parts = [f"# Results: {experiment}", _origin(rows), "\n".join(f"- {d}" for d in DEFINITIONS)]
    verdicts = [
        f"- {task}, temperature {temperature:g}: {verdict(own)}"
        for (task, temperature), own in panels(rows).items()
    ]
    parts += ["## Faster than autoregressive decoding?", "\n".join(verdicts)]
    parts += recommendation_section(rows)
    for (task, temperature), own in panels(rows).items():
        parts += [f"## {task}, temperature {temperature:g}", markdown(HEADER, panel_lines(own))]
    parts.append("## Against `none`, the drafter trained on without a head")
    parts += _difference_section(differences(rows), "none")
    parts += _domain_section(rows)
    reasons = not_complete(rows)
    if reasons:
        parts += ["## Not complete", "\n".join(f"- {reason}" for reason in reasons)]
    if figures:
        parts += ["## Figures", "\n\n".join(f"![{name}]({name})" for name in figures)]
    return "\n\n".join(parts) + "\n"
