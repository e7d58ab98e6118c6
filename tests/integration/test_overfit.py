"""Overfit gate: the decode loop must draft one memorised document in whole blocks. It catches what
teacher-forced accuracy cannot: an off-by-one between training and decoding (SpecForge #533)."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import xpress_exp
from xpress_exp.builders import DraftModel
from xpress_exp.data.anchor import anchor_candidates
from xpress_exp.decode import decode_autoregressive, decode_speculative
from xpress_exp.export import Content, write_folder
from xpress_exp.formats import FORMATS, refusal
from xpress_exp.objective import CoTrainObjective
from xpress_exp.optim import AdamWCosine
from xpress_exp.solver import JacobiSolver, ParallelSolver, SequentialSolver, Solver
from xpress_exp.target import TinyTarget
from xpress_exp.train.module import CoTrainModule
from xpress_exp.types import TrainBatch

PROMPT = [5, 9, 4, 13, 6]
LENGTH, STEPS = 33, 200
SOLVERS: dict[str, Solver] = {
    "parallel": ParallelSolver(),
    "sequential": SequentialSolver(),
    "jacobi": JacobiSolver(4),
}


def settings() -> tuple[CoTrainObjective, AdamWCosine]:
    weight = {"start": 0.6, "end": 0.2, "schedule": "linear"}
    objective = CoTrainObjective(0.1, 0.9, 4.0, weight, 0.3, 1, 64)
    optim = AdamWCosine(4e-3, 1e-2, (0.9, 0.95), 0.0, 0.05, 1.0, STEPS, 0.1)
    return objective, optim


def overfit(module: CoTrainModule, batch: TrainBatch) -> None:
    """All anchors of one document in every step."""
    (optimizer,), (schedule,) = module.configure_optimizers()
    targets = module.block_targets(batch)
    denominator = targets.weights.sum()
    for _ in range(STEPS):
        optimizer.zero_grad()
        module.block_losses(batch, targets, denominator).total.backward()
        module._clip(optimizer)
        optimizer.step()
        schedule.step()


@pytest.fixture(scope="module")
def target(make_target: Callable[..., TinyTarget]) -> TinyTarget:
    return make_target("qwen3", dtype=torch.float32, vocab_size=48, seed=2, scale=1.0)


@functools.cache
def greedy_text(target: TinyTarget) -> tuple[int, ...]:
    trace = decode_autoregressive(
        target, PROMPT, temperature=0.0, max_new_tokens=LENGTH, generator=None
    )
    return trace.tokens


def test_the_document_is_no_repetition(target: TinyTarget) -> None:
    text = greedy_text(target)
    assert len(text) == LENGTH and len(set(text)) > 16
    assert all(first != second for first, second in itertools.pairwise(text))


@pytest.mark.parametrize("convention", ["fill_in", "shift"])
@pytest.mark.parametrize("head", ["none", "markov", "gated", "rnn", "gru", "xpress"])
def test_a_memorised_document_is_drafted_in_whole_blocks(
    target: TinyTarget,
    make_model: Callable[..., DraftModel],
    make_content: Callable[..., Content],
    pack: Callable[..., TrainBatch],
    tmp_path: Path,
    head: str,
    convention: str,
) -> None:
    text = greedy_text(target)
    model = make_model(target, head, convention, block_size=4).train()
    document = [(PROMPT, list(text))]
    whole = pack(target, document, [len(PROMPT)])
    anchors = anchor_candidates(whole.loss_mask, whole.document_ids).nonzero()[:, 0].tolist()
    module = CoTrainModule(model, target, *settings())
    overfit(module, pack(target, document, anchors))
    model.eval()
    model.refold()
    whole_block = model.slots.num_draft_tokens + 1
    for name, solver in SOLVERS.items():
        trace = decode(target, model, solver)
        assert trace.tokens == text
        accepted = [item.accepted + 1 for item in trace.rounds[:-1]]
        if name == "parallel" and head != "none":
            continue  # one pass on the drafter's own guesses need not be right
        assert accepted == [whole_block] * (len(trace.rounds) - 1), (name, accepted)
    for unused in (0, 1):
        content = make_content(target, model, head, num_unused_slots=unused)
        pass_the_gate_from_disk(target, content, tmp_path)


def pass_the_gate_from_disk(target: TinyTarget, content: Content, folder: Path) -> None:
    """Whole blocks from every format that can hold the model, in the half precision they have."""
    for name in FORMATS:
        if refusal(name, content.drafter, content.head) is not None:
            continue
        write_folder(folder / name, name, content, "bfloat16", {}, "")
        trace = decode(target, xpress_exp.load(folder / name, target).model, SequentialSolver())
        assert trace.tokens == greedy_text(target)
        accepted = [item.accepted for item in trace.rounds[:-1]]
        assert accepted == [content.slots.num_draft_tokens] * len(accepted), (name, accepted)


def decode(target: TinyTarget, model: DraftModel, solver: Any) -> Any:
    return decode_speculative(
        target,
        model,
        solver,
        None,  # type: ignore[arg-type]  temperature 0 is always verified greedily
        PROMPT,
        temperature=0.0,
        draft_temperature=0.0,
        max_new_tokens=LENGTH,
        generator=None,
    )
