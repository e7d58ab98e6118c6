"""Per-position losses between draft logits and the target's law; pure functions.

Shapes: logits [..., V'], law [..., V'] (target probabilities of the draft vocabulary's columns),
labels int64 [...]; each result is [...].
"""

from __future__ import annotations

from torch import Tensor


def cross_entropy(log_draft: Tensor, labels: Tensor) -> Tensor:
    """-log q(label) from log-probabilities log_draft [..., V'] (first term of eq. 14)."""
    return -log_draft.gather(-1, labels[..., None])[..., 0]


def l1_distance(log_draft: Tensor, law: Tensor, outside: Tensor) -> Tensor:
    """||q - p||_1 = 2 TV(q, p) (eq. 13), in 0..2.

    outside [...] is the target's mass on tokens that a reduced draft vocabulary cannot draft.
    """
    return (log_draft.exp() - law).abs().sum(-1) + outside
