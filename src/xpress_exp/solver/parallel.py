"""One head pass on the drafter's own tokens."""

from __future__ import annotations

import torch

from xpress_exp.head import CorrectionHead
from xpress_exp.solver.contract import (
    BlockState,
    base_draft,
    block_noise,
    pick,
    proposal,
    refined_logits,
    scaled,
)
from xpress_exp.types import Proposal


class ParallelSolver:
    """Seeds with the base draft and corrects every position once, under the same noise.

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
        generator: torch.Generator | None,
    ) -> Proposal:
        """Draft x_1..x_N with one head evaluation (none for a head that reads no tokens)."""
        if head.dependence.tokens == "none":
            return base_draft(block, temperature, generator)
        noise = block_noise(block, temperature, generator)
        seed = pick(block, scaled(block.base_logits, temperature), noise)
        logits = refined_logits(block, head, head.prepare(block.hidden), seed, temperature)
        return proposal(block, pick(block, logits, noise), logits, temperature, num_passes=1)
