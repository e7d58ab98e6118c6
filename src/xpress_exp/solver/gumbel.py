"""Gumbel noise: argmax(logits + noise) is one draw from softmax(logits)."""

from __future__ import annotations

import torch
from torch import Tensor

from xpress_exp.types import Randomness

SMALLEST = 2.0**-54  # half of the spacing of float64 uniforms


def gumbel_like(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard Gumbel noise, float32, of the shape and on the device of `logits`.

    Uniforms lie in the open interval (torch draws from [0, 1)), so that the noise is finite. They
    are drawn in float64: in float32 the noise would end at 16.6, and tokens of probability below
    6e-8 would never be drawn although the law gives them mass.
    """
    uniform = torch.rand(
        logits.shape, generator=generator, device=logits.device, dtype=torch.float64
    )
    return uniform.clamp_min_(SMALLEST).log_().neg_().log_().neg_().float()


def gumbel(logits: Tensor, vocab_ids: Tensor | None, randomness: Randomness) -> Tensor:
    """Noise of the shape of logits [b, n, V'], whatever the draws come from."""
    if randomness is None or isinstance(randomness, torch.Generator):
        return gumbel_like(logits, randomness)
    return randomness.gumbel(logits, vocab_ids)
