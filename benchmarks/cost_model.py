"""The performance model against the clock: tokens per second of ten settings that its times were
not taken from.

    python benchmarks/cost_model.py [--quick]

SmolLM2 with the shipped drafter; heads are untrained with a small readout, which is fine for times,
and their acceptance is measured. All K passes are run: such heads would settle after one. Times
come from CALIBRATION; acceptance of every (head, K, block) from whole verified blocks. TESTS are
other numbers of passes and other verify lengths, decoded for the comparison only. All of them take
turns on every prompt.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from common import Figure, main
from torch import Tensor
from world import World, make_head, world

from xpress_exp.builders import DraftModel, load_content
from xpress_exp.decode import decode_autoregressive, decode_speculative
from xpress_exp.export import read_folder
from xpress_exp.head import CorrectionHead
from xpress_exp.metric import (
    Curve,
    DraftProfile,
    Latencies,
    PassCost,
    Prediction,
    conditional_acceptance,
    predict,
    tokens_per_second,
)
from xpress_exp.metric.bootstrap import percentile_interval
from xpress_exp.solver import BlockState, JacobiSolver, Solver
from xpress_exp.types import Proposal, Randomness, Round, SampleTrace
from xpress_exp.verifier import GreedyVerifier

RANK, READOUT_SCALE = 256, 0.15
RESAMPLES = 300


@dataclass(frozen=True)
class Setting:
    """length: how many of the block's drafts are verified."""

    head: str
    passes: int
    block: int
    length: int

    @property
    def whole(self) -> Setting:
        """The same drafts, all of them verified."""
        return dataclasses.replace(self, length=self.block - 1)

    def __str__(self) -> str:
        passes = "" if self.head == "none" else f" K={self.passes}"
        return f"{self.head}{passes} B={self.block} L={self.length}"


CALIBRATION = (
    Setting("none", 0, 8, 7),
    Setting("none", 0, 8, 3),
    Setting("none", 0, 8, 1),
    Setting("none", 0, 5, 4),
    Setting("markov", 1, 8, 7),
    Setting("markov", 4, 8, 7),
    Setting("xpress", 1, 8, 5),
    Setting("xpress", 4, 8, 7),
    Setting("xpress", 1, 5, 4),
    Setting("xpress", 4, 5, 4),
)
TESTS = (
    Setting("none", 0, 8, 2),
    Setting("none", 0, 8, 5),
    Setting("none", 0, 5, 2),
    Setting("markov", 2, 8, 7),
    Setting("markov", 3, 8, 4),
    Setting("markov", 6, 8, 2),
    Setting("xpress", 2, 8, 7),
    Setting("xpress", 6, 8, 7),
    Setting("xpress", 3, 8, 2),
    Setting("xpress", 2, 5, 3),
)
# Whole blocks that are decoded for their acceptance alone.
PROFILES = tuple(dict.fromkeys(t.whole for t in TESTS if t.whole not in (*CALIBRATION, *TESTS)))
PLAIN = "plain decoding"
# Prompt by prompt: setting -> its trace.
Traces = list[SampleTrace]
Measured = Mapping[Setting | str, Traces]


class FirstDrafts:
    """A solver whose block ends after `length` drafts: the target verifies no more."""

    def __init__(self, solver: Solver, length: int) -> None:
        self.solver = solver
        self.length = length

    def propose(
        self,
        block: BlockState,
        head: CorrectionHead,
        temperature: float,
        generator: Randomness,
    ) -> Proposal:
        found = self.solver.propose(block, head, temperature, generator)
        logits: Tensor | None = found.logits
        return dataclasses.replace(
            found,
            tokens=found.tokens[:, : self.length],
            logits=None if logits is None else logits[:, : self.length],
        )


def draft_model(view: World, head: str, block: int) -> DraftModel:
    """The shipped drafter at a block size, with an untrained head that changes a few tokens."""
    content = read_folder(view.folder)
    content = dataclasses.replace(content, drafter={**content.drafter, "block_size": block})
    model = load_content(content, view.folder, view.fast)
    if head != "none":
        model.head = make_head(head, model.head.dims, view.fast.embedding, RANK)
        with torch.no_grad():
            model.head.readout.mul_(READOUT_SCALE)
    model.make_fast(view.choice)
    return model


def decode_all(
    view: World, prompts: Sequence[list[int]], tokens: int
) -> dict[Setting | str, Traces]:
    """Every setting and plain decoding on every prompt, in rotating order; greedy."""
    settings = [*CALIBRATION, *TESTS, *PROFILES]
    kinds = dict.fromkeys((item.head, item.block) for item in settings)
    models = {kind: draft_model(view, *kind) for kind in kinds}

    def run(which: Setting | str, prompt: list[int], limit: int) -> SampleTrace:
        if isinstance(which, str):
            return decode_autoregressive(
                view.fast, prompt, temperature=0.0, max_new_tokens=limit, generator=None
            )
        return decode_speculative(
            view.fast,
            models[which.head, which.block],
            FirstDrafts(JacobiSolver(which.passes, stop="never"), which.length),
            GreedyVerifier(),
            prompt,
            temperature=0.0,
            draft_temperature=0.0,
            max_new_tokens=limit,
            generator=None,
        )

    works: list[Setting | str] = [PLAIN, *settings]
    for which in works:
        run(which, prompts[0], 4)
    found: dict[Setting | str, Traces] = {which: [] for which in works}
    for index, prompt in enumerate(prompts):
        # A stride, so that neighbours of one kind are not all measured in one quiet moment.
        start = index * len(works) // len(prompts)
        for which in works[start:] + works[:start]:
            found[which].append(run(which, prompt, tokens))
    return found


def _rounds(traces: Traces) -> list[Round]:
    return [item for trace in traces for item in trace.rounds]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _head_cost(name: str, measured: Mapping[float, float]) -> PassCost:
    """A line through the passes; without a head, the time of choosing the base tokens."""
    if name == "none":
        return PassCost(_mean(list(measured.values())), 0.0)
    return PassCost.fitted(measured)


def latencies(measured: Measured) -> Latencies:
    """Times of the calibration settings, and of plain decoding, alone."""
    rounds = {setting: _rounds(measured[setting]) for setting in CALIBRATION}
    step_ms = _mean([ms for trace in measured[PLAIN] for ms in trace.step_ms])
    everything = [item for own in rounds.values() for item in own]
    spent = sum(trace.decode_ms for setting in CALIBRATION for trace in measured[setting])
    inside = sum(item.draft_ms + item.head_ms + item.verify_ms for item in everything)
    draft: dict[int, list[float]] = {}
    verify: dict[int, list[float]] = {}
    head: dict[tuple[str, int], dict[float, float]] = {}
    for setting, own in rounds.items():
        draft.setdefault(setting.block, []).extend(item.draft_ms for item in own)
        verify.setdefault(1 + setting.length, []).extend(item.verify_ms for item in own)
        passes = _mean([item.num_passes for item in own])
        key = (setting.head, setting.block)
        head.setdefault(key, {})[passes] = _mean([item.head_ms for item in own])
    points = {1: step_ms} | {size: _mean(ms) for size, ms in verify.items()}
    return Latencies(
        step_ms=step_ms,
        verify=Curve(tuple(sorted(points.items()))),
        draft_ms={block: _mean(ms) for block, ms in draft.items()},
        head={key: _head_cost(key[0], ms) for key, ms in head.items()},
        other_ms=(spent - inside) / len(everything),
    )


def profile(measured: Measured, setting: Setting) -> DraftProfile:
    """Acceptance and passes of the setting's drafts, from whole verified blocks."""
    traces = measured[setting.whole]
    passes = _mean([item.num_passes for item in _rounds(traces)])
    conditional = conditional_acceptance(traces)
    return DraftProfile(setting.head, setting.passes, setting.block, conditional, passes)


def compared(measured: Measured) -> tuple[dict[Setting, Prediction], dict[Setting, float]]:
    """Of every test: what is predicted, and tokens per second by the clock."""
    table = latencies(measured)
    told = {test: predict(table, profile(measured, test), test.length) for test in TESTS}
    return told, {test: tokens_per_second(measured[test]) for test in TESTS}


def errors(measured: Measured) -> dict[Setting, float]:
    """(predicted - measured) / measured of every test."""
    told, clock = compared(measured)
    return {test: told[test].tokens_per_second / clock[test] - 1 for test in TESTS}


def _resampled(measured: Measured) -> np.ndarray:
    """Absolute errors [RESAMPLES, tests] with prompts drawn with replacement."""
    count = len(measured[PLAIN])
    draws = np.random.default_rng(0).integers(0, count, (RESAMPLES, count))
    rows = []
    for draw in draws:
        picked = {which: [traces[i] for i in draw] for which, traces in measured.items()}
        rows.append([abs(error) for error in errors(picked).values()])
    return np.array(rows)


def told(measured: Measured) -> dict[str, Figure]:
    predicted, clock = compared(measured)
    for test in TESTS:
        print(
            f"{test!s:<22} predicted {predicted[test].tokens_per_second:6.2f}  measured "
            f"{clock[test]:6.2f} tokens/s  committed {predicted[test].committed:.2f}"
        )
    found = errors(measured)
    worst = max(TESTS, key=lambda test: abs(found[test]))
    sizes = np.array([abs(error) for error in found.values()])
    samples = _resampled(measured)
    largest, mean = percentile_interval(samples.max(1)), percentile_interval(samples.mean(1))
    choice = max(TESTS, key=lambda test: predicted[test].tokens_per_second)
    best = max(TESTS, key=lambda test: clock[test])
    return {
        "cost_model_error": Figure(
            float(sizes.max()),
            largest.low,
            largest.high,
            note=(
                f"largest of ten relative errors of tokens/s, at {worst} ({found[worst]:+.3f}); "
                "times from ten other settings; interval over prompts"
            ),
        ),
        "cost_model_mean_error": Figure(
            float(sizes.mean()), mean.low, mean.high, note="mean of the same ten"
        ),
        "cost_model_choice_over_best": Figure(
            clock[choice] / clock[best],
            note=f"measured rate of the predicted best ({choice}) over the measured best ({best})",
        ),
    }


def figures(quick: bool) -> dict[str, Figure]:
    view = world()
    measured = decode_all(view, view.prompts(2 if quick else 4), 8 if quick else 32)
    return told(measured)


if __name__ == "__main__":
    main(figures)
