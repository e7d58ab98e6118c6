"""How time and memory grow with each size, as powers fitted on log-log scales.

A training step of xPress, its objective with the head alone, and the head's passes of decoding, on
random weights. Times are medians of rounds taken in turns; memory is the peak of live tensors,
counted allocation by allocation. Draws scaling.png.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bars import EXPONENTS, PREFIX
from common import RESAMPLES, Figure, in_turns, main
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from xpress_exp.data.anchor import block_targets
from xpress_exp.drafter import DFlashDrafter, block_groups
from xpress_exp.head import XPressHead
from xpress_exp.metric.bootstrap import percentile_interval
from xpress_exp.objective import CoTrainObjective
from xpress_exp.solver import BlockState, JacobiSolver
from xpress_exp.types import ModelDims, SlotConvention, SlotMap, TrainBatch

HIDDEN, HEADS, DOCUMENTS, CHUNK_BLOCKS = 192, 3, 4, 4
GAMMA, PROGRESS = 4.0, 0.5
DRAWING = Path(__file__).with_name("scaling.png")


@dataclass(frozen=True)
class Sizes:
    """What is varied. passes: consistency passes of training, K of decoding."""

    anchors: int = 32
    block: int = 8
    vocabulary: int = 2048
    sequence: int = 512
    rank: int = 64
    passes: int = 1

    def __post_init__(self) -> None:
        self.slots  # noqa: B018  refuses a block that drafts nothing

    @property
    def slots(self) -> SlotMap:
        return SlotMap(SlotConvention.FILL_IN, self.block)

    @property
    def dims(self) -> ModelDims:
        return ModelDims(HIDDEN, self.vocabulary, self.vocabulary, self.slots)


TRAINING = Sizes()
# One block at a time: larger tables, or fixed costs would be all there is.
DECODING = Sizes(anchors=1, block=16, vocabulary=8192, rank=64, passes=4)
VALUES: Mapping[str, Sequence[int]] = {
    "anchors": (16, 32, 64, 128),
    "block": (4, 8, 16, 32),
    "vocabulary": (1024, 2048, 4096, 8192),
    "sequence": (512, 1024, 2048, 4096),
    "rank": (16, 32, 64, 128),
    "passes": (1, 2, 4, 8),
}
Work = Callable[[], object]


def _draw() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _head(sizes: Sizes, embedding: Tensor) -> XPressHead:
    head = XPressHead(sizes.dims, embedding, rank=sizes.rank)
    with torch.no_grad():
        head.readout.normal_(std=0.02, generator=_draw())
    return head


def _batch(sizes: Sizes) -> TrainBatch:
    draw, length = _draw(), sizes.sequence // DOCUMENTS
    places = torch.arange(sizes.sequence)
    allowed = places[(places % length >= 1) & (places % length <= length - sizes.block)]
    chosen = torch.randperm(len(allowed), generator=draw)[: sizes.anchors]
    return TrainBatch(
        step=0,
        input_ids=torch.randint(sizes.vocabulary, (sizes.sequence,), generator=draw),
        document_ids=places // length,
        position_ids=places % length,
        loss_mask=torch.ones(sizes.sequence, dtype=torch.bool),
        anchors=allowed[chosen].sort().values,
        features=torch.randn(sizes.sequence, 2 * HIDDEN, generator=draw),
        last_hidden=torch.randn(sizes.sequence, HIDDEN, generator=draw),
    )


def _objective(sizes: Sizes) -> CoTrainObjective:
    weight = {"start": 0.6, "end": 0.2, "schedule": "linear"}
    return CoTrainObjective(0.1, 0.9, GAMMA, weight, 0.3, sizes.passes, CHUNK_BLOCKS)


def training_works(sizes: Sizes) -> dict[str, Work]:
    """'step': forward and backward of drafter, head and objective; 'objective': without drafter."""
    draw, batch, objective = _draw(), _batch(sizes), _objective(sizes)
    embedding = torch.randn(sizes.vocabulary, HIDDEN, generator=draw) * 0.05
    frequencies = 1e-4 ** torch.linspace(0, 1, HIDDEN // HEADS // 2)
    shape = (1, 4 * HIDDEN, HEADS, 1, HIDDEN // HEADS, 3)
    drafter = DFlashDrafter(sizes.dims, 2 * HIDDEN, embedding, frequencies, 1.0, *shape)
    head = _head(sizes, embedding)
    targets = block_targets(batch, sizes.slots, GAMMA)
    total = targets.weights.sum()
    fixed = torch.randn(len(batch.anchors), sizes.block, HIDDEN, generator=draw)
    parts = [*drafter.parameters(), *head.parameters()]

    def loss(hidden: Tensor) -> Tensor:
        found = objective(hidden, head, embedding, None, targets, sizes.slots, PROGRESS, total)
        return found.total

    def step() -> None:
        for parameter in parts:
            parameter.grad = None
        assert batch.features is not None
        hidden = drafter(
            batch.features,
            batch.position_ids,
            batch.input_ids[batch.anchors],
            batch.position_ids[batch.anchors],
            block_groups(batch.anchors, batch.document_ids, sizes.block),
        )
        loss(hidden).backward()

    def objective_alone() -> None:
        for parameter in parts:
            parameter.grad = None
        loss(fixed.clone().requires_grad_()).backward()

    return {"step": step, "objective": objective_alone}


def decoding_works(sizes: Sizes) -> dict[str, Work]:
    """'refine': K passes of the head over one block, at temperature 0."""
    draw = _draw()
    embedding = torch.randn(sizes.vocabulary, HIDDEN, generator=draw) * 0.05
    head = _head(sizes, embedding).eval().requires_grad_(False)
    head.refold()
    block = BlockState(
        base_logits=torch.randn(1, sizes.slots.num_draft_tokens, sizes.vocabulary, generator=draw),
        hidden=torch.randn(1, sizes.block, HIDDEN, generator=draw),
        anchor=torch.tensor([5]),
        anchor_previous=torch.tensor([6]),
        slots=sizes.slots,
    )
    solver = JacobiSolver(sizes.passes, stop="never")
    return {"refine": lambda: solver.propose(block, head, 0.0, None)}


@contextmanager
def quiet() -> Iterator[None]:
    """Without standard error: the profiler's C++ part announces every start and stop there."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def peak_bytes(work: Work) -> float:
    """Largest sum of bytes that the work's tensors held at one moment, beside those before it."""
    with quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        work()
    kineto: Any = record.profiler.kineto_results  # type: ignore[union-attr]
    events = [(e.start_ns(), e.nbytes()) for e in kineto.events() if e.name() == "[memory]"]
    held = np.cumsum([size for _, size in sorted(events, key=lambda event: event[0])])
    return float(held.max())


def exponent(values: Sequence[int], measured: np.ndarray) -> np.ndarray:
    """Slopes of log(measured [..., sizes]) over log(values), least squares."""
    x = np.log(np.asarray(values, dtype=np.float64))
    x = x - x.mean()
    return (np.log(measured) * x).sum(-1) / (x * x).sum()


def time_exponent(values: Sequence[int], seconds: np.ndarray, note: str) -> Figure:
    """Power of the median over rounds of seconds [sizes, rounds], with a bootstrap interval."""
    picks = np.random.default_rng(0).integers(0, seconds.shape[1], (RESAMPLES, seconds.shape[1]))
    interval = percentile_interval(exponent(values, np.median(seconds[:, picks], -1).T))
    value = float(exponent(values, np.median(seconds, -1)))
    return Figure(value, interval.low, interval.high, note=note)


def _range(values: Sequence[int], sizes: Sizes, axis: str) -> str:
    others = {k: v for k, v in vars(sizes).items() if k != axis and not (k == "anchors" and v == 1)}
    fixed = ", ".join(f"{name} {value}" for name, value in others.items())
    return f"{axis} {values[0]} to {values[-1]}; {fixed}"


Curves = dict[tuple[str, str], tuple[Sequence[int], list[float]]]


def measured_axis(
    axis: str,
    base: Sizes,
    make: Callable[[Sizes], dict[str, Work]],
    rounds: int,
    curves: Curves,
) -> dict[str, Figure]:
    """Exponents of everything that `make` gives, along one axis."""
    values = VALUES[axis]
    works = [make(replace(base, **{axis: value})) for value in values]
    found = {}
    for name in works[0]:
        own = {str(value): work[name] for value, work in zip(values, works, strict=True)}
        if axis in EXPONENTS.get(f"{name}_time", {}):
            taken = in_turns(own, rounds)
            seconds = np.array([taken[str(value)] for value in values])
            note = _range(values, base, axis)
            found[f"{PREFIX}{name}_time_{axis}"] = time_exponent(values, seconds, note)
            curves[f"{name} time", axis] = (values, np.median(seconds, -1).tolist())
        if axis in EXPONENTS.get(f"{name}_memory", {}):
            peaks = [peak_bytes(work) for work in own.values()]
            value = float(exponent(values, np.array(peaks)))
            found[f"{PREFIX}{name}_memory_{axis}"] = Figure(
                value, note=f"{_range(values, base, axis)}; counted, exact"
            )
            curves[f"{name} memory", axis] = (values, peaks)
    return found


def bytes_per_pair() -> Figure:
    """Bytes of the objective's peak for every pair of a slot and a token of the vocabulary: the
    mixed difference over twice the anchors and twice the vocabulary. 4 is one float32 tensor."""
    few, many = TRAINING.anchors, 2 * TRAINING.anchors
    small, large = TRAINING.vocabulary, 2 * TRAINING.vocabulary

    def peak(anchors: int, vocabulary: int) -> float:
        sizes = replace(TRAINING, anchors=anchors, vocabulary=vocabulary)
        return peak_bytes(training_works(sizes)["objective"])

    mixed = peak(many, large) - peak(many, small) - peak(few, large) + peak(few, small)
    pairs = (many - few) * TRAINING.block * (large - small)
    note = (
        "counted, exact; 0 says that no tensor holds all slots times the vocabulary (with all "
        "blocks in one chunk it is 9)"
    )
    return Figure(mixed / pairs, note=note)


def drawn(curves: Curves, path: Path) -> None:
    """One panel per axis: everything relative to its smallest size, on log-log scales."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colours = {"step": "#0072B2", "objective": "#E69F00", "refine": "#009E73"}
    figure, axes = pyplot.subplots(2, 3, figsize=(11, 6.5))
    for axis, panel in zip(VALUES, axes.flat, strict=True):
        for (what, along), (values, numbers) in curves.items():
            if along != axis:
                continue
            name, kind = what.split()
            style = {"time": "o-", "memory": "s--"}[kind]
            relative = [number / numbers[0] for number in numbers]
            panel.plot(values, relative, style, color=colours[name], label=what, markersize=4)
        ends = (VALUES[axis][0], VALUES[axis][-1])
        panel.plot(ends, (1, ends[1] / ends[0]), ":", color="grey", label="power 1")
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=2)
        panel.set_xlabel(axis)
        panel.set_ylabel("relative to the smallest")
        panel.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def figures(quick: bool) -> dict[str, Figure]:
    """exponent_<what>_<axis> of every entry of bars.EXPONENTS."""
    rounds = 2 if quick else 7
    curves: Curves = {}
    found = {"objective_bytes_per_slot_and_token": bytes_per_pair()}
    for axis in VALUES:
        found |= measured_axis(axis, TRAINING, training_works, rounds, curves)
        if axis in EXPONENTS["refine_time"]:
            found |= measured_axis(axis, DECODING, decoding_works, 3 * rounds, curves)
    if not quick:
        drawn(curves, DRAWING)
    return dict(sorted(found.items()))


if __name__ == "__main__":
    main(figures)
