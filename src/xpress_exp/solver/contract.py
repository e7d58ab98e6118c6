"""What every solver is, and the parts that all of them share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from xpress_exp.head import CorrectionHead
from xpress_exp.law import ALL_TOKENS, Truncation, processed
from xpress_exp.readout import argmax
from xpress_exp.solver.gumbel import gumbel
from xpress_exp.types import Proposal, Randomness, SlotMap


@dataclass(frozen=True)
class BlockState:
    """One drafted block, fixed while a solver works on it.

    base_logits [b, N, V'] float32 of x_1..x_N, hidden [b, P, H], anchor [b] and anchor_previous [b]
    int64 target ids, vocab_ids int64 [V'] (draft to target ids) or None for the identity.
    truncation: the filters that the target's law passes as well.
    """

    base_logits: Tensor
    hidden: Tensor
    anchor: Tensor
    anchor_previous: Tensor
    slots: SlotMap
    vocab_ids: Tensor | None = None
    truncation: Truncation = ALL_TOKENS


class Solver(Protocol):
    """Resolves the dependency of a head's correction on the tokens it corrects."""

    def propose(
        self,
        block: BlockState,
        head: CorrectionHead,
        temperature: float,
        generator: Randomness,
    ) -> Proposal:
        """Draft x_1..x_N. Temperature 0: argmax tokens, a point mass (logits None)."""
        ...


def previous_tokens(block: BlockState, head: CorrectionHead, drafts: Tensor) -> Tensor:
    """Token read by each slot given drafts [b, >=0] so far; int64 [b, P]."""
    before = block.anchor if head.anchor_prev == "anchor" else block.anchor_previous
    return block.slots.previous_tokens(block.anchor, drafts, before)


def block_noise(block: BlockState, temperature: float, generator: Randomness) -> Tensor | None:
    """Gumbel noise [b, N, V'] of one block; None at temperature 0."""
    return gumbel(block.base_logits, block.vocab_ids, generator) if temperature > 0 else None


def law_logits(block: BlockState, logits: Tensor, temperature: float) -> Tensor:
    """Logits [..., V'] whose softmax is the drafts' law; unchanged at temperature 0."""
    return processed(logits, temperature, block.truncation)


def pick(block: BlockState, logits: Tensor, noise: Tensor | None) -> Tensor:
    """Target ids of the argmax over V' of logits (+ noise): a draw from softmax(logits) if noise
    is Gumbel. Ties go to the lowest index. [..., V'] -> int64 [...]."""
    index = argmax(logits if noise is None else logits + noise)
    return index if block.vocab_ids is None else block.vocab_ids[index]


def refined_logits(
    block: BlockState,
    head: CorrectionHead,
    prepared: Any,
    drafts: Tensor,
    temperature: float,
    first: int = 0,
) -> Tensor:
    """Corrected logits, as their law has them, [b, N - first, V'] of the drafts from `first` on, of
    one pass that reads drafts [b, N]."""
    z = head.code_from(prepared, previous_tokens(block, head, drafts))
    codes = z[:, block.slots.draft_slots][:, first:]
    logits = head.correct(block.base_logits[:, first:], codes)
    return law_logits(block, logits, temperature)


def proposal(
    block: BlockState, tokens: Tensor, logits: Tensor, temperature: float, num_passes: int
) -> Proposal:
    """Tokens with the law they were drawn from: `logits` of the last pass, or a point mass."""
    law = logits if temperature > 0 else None
    return Proposal(tokens, law, block.vocab_ids, num_passes)


def base_draft(block: BlockState, temperature: float, generator: Randomness) -> Proposal:
    """The bare drafter's block, drawn position by position from the base logits; 0 passes."""
    logits = law_logits(block, block.base_logits, temperature)
    tokens = pick(block, logits, block_noise(block, temperature, generator))
    return proposal(block, tokens, logits, temperature, num_passes=0)
