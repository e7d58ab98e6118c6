"""What a head says when decoding is what it was trained to say (P11c): the logits of a drafted
block, recorded in the decode loop, equal the teacher-forced logits of training on its tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from xpress_exp.builders import DraftModel
from xpress_exp.data.anchor import block_targets
from xpress_exp.decode import decode_speculative, random_stream
from xpress_exp.drafter import block_mask
from xpress_exp.head import CorrectionHead
from xpress_exp.solver import BlockState, SequentialSolver
from xpress_exp.target import TinyTarget
from xpress_exp.types import Proposal, TrainBatch
from xpress_exp.verifier import RejectionVerifier

PROMPT = [5, 9, 4, 13, 6]
TEMPERATURE = 0.8


@dataclass
class Recorder:
    """The sequential solver; keeps every proposal with its anchor."""

    kept: list[tuple[int, Proposal]] = field(default_factory=list)

    def propose(
        self,
        block: BlockState,
        head: CorrectionHead,
        temperature: float,
        generator: torch.Generator | None,
    ) -> Proposal:
        proposal = SequentialSolver().propose(block, head, temperature, generator)
        self.kept.append((int(block.anchor), proposal))
        return proposal


def teacher_forced(model: DraftModel, batch: TrainBatch) -> Tensor:
    """Logits [N, V] of the batch's only block, the way the objective computes them."""
    targets = block_targets(batch, model.slots, 4.0, model.head.anchor_prev)
    hidden = model.drafter(
        batch.features,
        batch.position_ids,
        batch.input_ids[batch.anchors],
        batch.position_ids[batch.anchors],
        block_mask(batch.anchors, batch.document_ids, model.slots.block_size),
    )
    z = model.head.code(hidden, targets.previous_tokens)
    return model.head.correct(model.base_logits(hidden), z)[0, model.slots.draft_slots]


@pytest.mark.property("P11c")
@pytest.mark.parametrize("convention", ["fill_in", "shift"])
@pytest.mark.parametrize("head", ["markov", "gated", "rnn", "gru", "xpress"])
def test_decoding_logits_are_training_logits(
    make_target: Callable[..., TinyTarget],
    make_model: Callable[..., DraftModel],
    pack: Callable[..., TrainBatch],
    monkeypatch: pytest.MonkeyPatch,
    head: str,
    convention: str,
) -> None:
    target = make_target("qwen3", vocab_size=20)
    monkeypatch.setattr(target, "stop_token_ids", frozenset())
    model = make_model(target, head, convention, block_size=5, randomize=0.4)
    model.refold()
    recorder: Any = Recorder()
    trace = decode_speculative(
        target,
        model,
        recorder,
        RejectionVerifier(),
        PROMPT,
        temperature=TEMPERATURE,
        draft_temperature=TEMPERATURE,
        max_new_tokens=16,
        generator=random_stream(target.device, "parity", head),
    )
    text, place, moved = [*PROMPT, *trace.tokens], len(PROMPT), 0.0
    assert len(trace.rounds) > 3
    for (anchor, proposal), done in zip(recorder.kept, trace.rounds, strict=True):
        assert text[place] == anchor and proposal.logits is not None
        drafted = proposal.tokens[0].tolist()
        document = (text[:place], [anchor, *drafted])
        batch = pack(target, [document], [place])
        with torch.no_grad():
            expected = teacher_forced(model, batch) / TEMPERATURE
            # The law of x_k must not depend on x_k or later: only then is training parallel.
            other = (text[:place], [anchor, *drafted[:-1], (drafted[-1] + 1) % 20])
            same = teacher_forced(model, pack(target, [other], [place])) / TEMPERATURE
            early = (text[:place], [anchor, (drafted[0] + 1) % 20, *drafted[1:]])
            changed = teacher_forced(model, pack(target, [early], [place])) / TEMPERATURE
        torch.testing.assert_close(proposal.logits[0], expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(same, expected, rtol=1e-9, atol=1e-9)
        moved = max(moved, float((changed - expected).abs().max()))
        place += done.accepted + 1
    assert moved > 1e-2
