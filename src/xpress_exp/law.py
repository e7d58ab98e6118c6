"""From logits to a law: temperature, top-k, top-p, in this order.

One function serves the target's law, the drafts' law and plain sampling: they cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Truncation:
    """Which tokens may be drawn at a temperature above 0; None switches a filter off.

    top_k keeps the k largest logits and all ties with the k-th. top_p then keeps the most probable
    tokens until they hold that share of the mass, at least one. Raises ValueError out of range.
    """

    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"decode.top_k={self.top_k} keeps no token; use 1 or more, or null")
        if self.top_p is not None and not 0 < self.top_p < 1:
            raise ValueError(f"decode.top_p={self.top_p} must lie between 0 and 1; null keeps all")


ALL_TOKENS = Truncation()


def float32_or_wider(logits: Tensor) -> Tensor:
    """Half precision becomes float32; float64 stays."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def processed(logits: Tensor, temperature: float, truncation: Truncation = ALL_TOKENS) -> Tensor:
    """Logits [..., V] whose softmax is the law, float32 or wider; -inf where a token was removed.

    At temperature 0, where no filter can change the argmax, they come back unscaled. Order and
    semantics of Transformers' TemperatureLogitsWarper, TopKLogitsWarper and TopPLogitsWarper; among
    equal logits at the edge of top-p the higher ids stay, whatever the shape of the batch.
    """
    logits = float32_or_wider(logits)
    if temperature == 0:
        return logits
    logits = logits / temperature
    if truncation.top_k is not None and truncation.top_k < logits.shape[-1]:
        smallest = logits.topk(truncation.top_k, -1).values[..., -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if truncation.top_p is not None:
        ascending, order = logits.sort(dim=-1, stable=True)
        removed = ascending.softmax(-1).cumsum(-1) <= 1 - truncation.top_p
        removed[..., -1] = False
        removed = torch.empty_like(removed).scatter(-1, order, removed)
        logits = logits.masked_fill(removed, -torch.inf)
    return logits


def probabilities(
    logits: Tensor, temperature: float, truncation: Truncation = ALL_TOKENS
) -> Tensor:
    """Probabilities [..., V] of raw logits at a temperature above 0, float32 or wider."""
    return processed(logits, temperature, truncation).softmax(-1)
