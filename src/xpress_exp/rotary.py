"""Rotary position embedding, the same for target and drafter."""

from __future__ import annotations

import torch
from torch import Tensor


class Rotary:
    """Cos and sin [..., head_dim] of integer positions [...]; inv_freq [head_dim / 2]."""

    def __init__(self, inv_freq: Tensor, scale: float) -> None:
        self.inv_freq = inv_freq
        self.scale = scale

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        # In float64 for float64 models, so that caches and full passes agree to the last digits.
        work = torch.promote_types(dtype, torch.float32)
        angles = positions[..., None].to(work) * self.inv_freq.to(positions.device, work)
        angles = torch.cat([angles, angles], -1)
        return (angles.cos() * self.scale).to(dtype), (angles.sin() * self.scale).to(dtype)


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary embedding to [b, heads, t, head_dim] with cos, sin [b, t, head_dim]."""
    first, second = states.chunk(2, -1)
    turned = torch.cat([-second, first], -1)
    return states * cos[:, None] + turned * sin[:, None]
