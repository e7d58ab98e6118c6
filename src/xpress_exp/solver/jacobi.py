"""Jacobi refinement: K parallel passes, each reading the previous pass's tokens (Algorithm 1)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from xpress_exp.head import CorrectionHead
from xpress_exp.solver.contract import (
    BlockState,
    base_draft,
    block_noise,
    law_logits,
    pick,
    proposal,
    refined_logits,
)
from xpress_exp.types import Proposal, Randomness

CHOICES = {
    "noise": ("shared", "fresh", "last"),
    "seed": ("sampled", "argmax"),
    "stop": ("fixed_point", "never"),
}


class JacobiSolver:
    """At most num_iterations passes; position k is exact after k passes from any seed (Theorem 1).

    At temperature > 0 the law is that of the last pass's logits: the tensor whose draw gave the
    tokens, never one recomputed from the final tokens, which would bias the output.
    noise: one Gumbel table per block for seed and all passes (shared), a new one for every pass
    (fresh), or greedy passes and a drawn last one (last; its seed is always argmax).
    seed: base tokens drawn under the noise, or their argmax. stop: end when a pass changes no token
    of the block, which cannot change the outcome; with fresh noise no fixed point exists and every
    pass runs. num_iterations 0 is the base draft, drawn from the base law whatever the seed.
    Raises ValueError for an unknown option or a negative num_iterations.
    """

    def __init__(
        self,
        num_iterations: int,
        noise: Literal["shared", "fresh", "last"] = "shared",
        seed: Literal["sampled", "argmax"] = "sampled",
        stop: Literal["fixed_point", "never"] = "fixed_point",
    ) -> None:
        if num_iterations < 0:
            raise ValueError(f"solver.num_iterations={num_iterations} must be 0 or more")
        for field, value in (("noise", noise), ("seed", seed), ("stop", stop)):
            if value not in CHOICES[field]:
                known = ", ".join(CHOICES[field])
                raise ValueError(f"solver.{field}={value} is unknown; use one of {known}")
        self.num_iterations = num_iterations
        self.noise: Literal["shared", "fresh", "last"] = noise
        self.seed: Literal["sampled", "argmax"] = seed
        self.stop = stop

    @torch.no_grad()
    def propose(
        self,
        block: BlockState,
        head: CorrectionHead,
        temperature: float,
        generator: Randomness,
    ) -> Proposal:
        """Draft x_1..x_N with at most num_iterations head evaluations (none for a head that reads
        no tokens). A batch stops when all of its blocks have."""
        if self.num_iterations == 0 or head.dependence.tokens == "none":
            return base_draft(block, temperature, generator)
        noise = block_noise(block, temperature, generator)
        prepared = head.prepare(block.hidden)
        tokens = self._seed(block, temperature, noise)
        # Fresh noise redraws every token: nothing is settled before the last pass.
        watches = self.stop == "fixed_point" and (noise is None or self.noise != "fresh")
        logits = torch.empty_like(block.base_logits)
        passes, settled = 0, 0
        while True:
            passes += 1
            final = passes == self.num_iterations
            if self.noise == "fresh":
                noise = block_noise(block, temperature, generator)
            new = refined_logits(block, head, prepared, tokens, temperature, settled)
            if temperature > 0:  # greedy drafts have no law to keep
                logits[:, settled:] = new
            draws = None if self.noise == "last" and not final else noise
            refined = tokens.clone()
            refined[:, settled:] = pick(block, new, None if draws is None else draws[:, settled:])
            if watches:
                settled = _unchanged(tokens, refined) + 1
            done = final or settled > tokens.shape[1]
            if done and self.noise == "last" and noise is not None:
                # Further passes would read these tokens: the last one is drawn right here, the
                # settled places included.
                refined = pick(block, logits, noise)
            if done:
                return proposal(block, refined, logits, temperature, passes)
            tokens = refined

    def _seed(self, block: BlockState, temperature: float, noise: Tensor | None) -> Tensor:
        drawn = self.seed == "sampled" and self.noise != "last"
        return pick(
            block, law_logits(block, block.base_logits, temperature), noise if drawn else None
        )


def _unchanged(before: Tensor, after: Tensor) -> int:
    """Length of the prefix in which no row changed. The draft behind it has read final tokens
    only, so that it is final as well."""
    return int((before == after).all(0).to(torch.int64).cumprod(0).sum())
