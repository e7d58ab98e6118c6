"""A small experiment on disk: arms, seeds and K with crafted records, plus absent runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from xpress_exp.metric import EvalRecord, to_line
from xpress_exp.report import ExpectedPoint
from xpress_exp.run_dir import write_json
from xpress_exp.types import Round, SampleTrace


def trace(
    prompt_id: str, domain: str, accepted: Sequence[int], round_ms: float, tokens: int, is_ar: bool
) -> SampleTrace:
    rounds = tuple(Round(3, count, count + 1, 1, round_ms, 0.0, 0.0) for count in accepted)
    return SampleTrace(
        prompt_id=prompt_id,
        domain=domain,
        tokens=tuple(range(tokens + 1)),
        rounds=() if is_ar else rounds,
        prompt_tokens=5,
        prefill_ms=1.0,
        decode_ms=10.0 * tokens if is_ar else round_ms * len(rounds),
        step_ms=(10.0,) * tokens if is_ar else (),
        finish_reason="length",
    )


def write_point(
    root: Path,
    arm: str,
    accepted: int,
    *,
    solver: str = "jacobi",
    num_iterations: int | None = 2,
    seed: int = 0,
    num_prompts: int = 12,
    written: int | None = None,
    round_ms: float = 12.0,
    failure: str | None = None,
    settings: str = "",
    recipe: str = "same",
    temperatures: tuple[float, ...] = (0.0, 1.0),
) -> ExpectedPoint:
    """Prompt i has rounds that accept `accepted` drafts, one round in three a draft fewer;
    `written` < num_prompts leaves the evaluation unfinished, 0 writes nothing."""
    written = num_prompts if written is None else written
    run = f"{arm}-s{seed}-{settings}"
    folder = root / run / "eval" / f"{solver}{num_iterations}"
    variant: dict[str, Any] = {
        "run": run,
        "arm": arm,
        "head": "none" if arm.startswith("none") else arm,
        "solver": solver,
        "num_iterations": num_iterations,
        "verifier": "rejection",
        "rank": None if arm.startswith("none") else 64,
        "block_size": 4,
        "seed": seed,
        "task": "heldout",
        "draft_temperature": "same",
        "num_prompts": num_prompts,
    }
    if written:
        write_json(
            folder / "variant.json", {**variant, "commit": "abc123", "dirty": True, "device": "cpu"}
        )
    lines = []
    for temperature in temperatures:
        for index in range(written):
            counts = [max(accepted - (turn % 3 == 0), 0) for turn in range(3 + index % 3)]
            tokens = sum(counts) + len(counts)
            name, domain = f"p{index}", ("math", "code")[index % 2]
            ar = trace(name, domain, (), 0.0, tokens, is_ar=True)
            own = trace(name, domain, counts, round_ms, tokens, is_ar=False)
            lines.append(to_line(EvalRecord(name, domain, temperature, index, 1, ar, own)))
    if lines:
        (folder / "heldout.jsonl").write_text("".join(lines))
    return ExpectedPoint(variant, temperatures, folder, failure, settings, recipe)


@pytest.fixture
def point(tmp_path: Path) -> Any:
    return lambda *arguments, **options: write_point(tmp_path / "runs", *arguments, **options)


@pytest.fixture
def points(point: Any) -> list[ExpectedPoint]:
    swept = [point("markov", k, num_iterations=k) for k in (1, 2, 3)]
    return [
        point("none", 1, solver="parallel", num_iterations=None),
        *swept,
        point("markov", 3, solver="sequential", num_iterations=None),
        point("xpress", 2, written=5),
        point("gru", 2, written=0),
        point("broken", 2, written=0, failure="train: loss is nan\nat step 3"),
    ]
