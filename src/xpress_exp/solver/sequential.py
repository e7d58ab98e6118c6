"""Left-to-right drafting: every position reads the tokens already drawn."""

from __future__ import annotations

import torch

from xpress_exp.head import CorrectionHead
from xpress_exp.solver.contract import (
    BlockState,
    base_draft,
    block_noise,
    law_logits,
    pick,
    previous_tokens,
    proposal,
)
from xpress_exp.types import Proposal, Randomness


class SequentialSolver:
    """N small head steps with the head's incremental state; the Jacobi solver's fixed point.

    num_iterations is accepted for a uniform config and has no effect.
    """

    def __init__(self, num_iterations: int | None = None) -> None:
        self.num_iterations = num_iterations

    @torch.no_grad()
    def propose(
        self,
        block: BlockState,
        head: CorrectionHead,
        temperature: float,
        generator: Randomness,
    ) -> Proposal:
        """Draft x_1..x_N with N head steps (none for a head that reads no tokens)."""
        if head.dependence.tokens == "none":
            return base_draft(block, temperature, generator)
        noise = block_noise(block, temperature, generator)
        state = head.init_state(head.prepare(block.hidden))
        drafts = block.anchor.new_zeros(block.anchor.shape[0], 0)
        laws = []
        for slot in range(block.slots.draft_slots.stop):
            z, state = head.step(state, slot, previous_tokens(block, head, drafts)[:, slot])
            position = slot - block.slots.first_slot
            if position < 0:  # the anchor's own slot: it feeds the state and drafts nothing
                continue
            logits = law_logits(block, head.correct(block.base_logits[:, position], z), temperature)
            token = pick(block, logits, None if noise is None else noise[:, position])
            drafts = torch.cat([drafts, token[:, None]], 1)
            laws.append(logits)
        return proposal(block, drafts, torch.stack(laws, 1), temperature, num_passes=len(laws))
