"""Eq. 14 of many rows of logits together with its gradient, written into given memory.

Automatic differentiation makes about ten matrices of the logits' size per law. Here rows few enough
to stay in the processor's cache go through all steps before the next ones do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from xpress_exp.objective.vocab_chunk import slices
from xpress_exp.readout import argmax

# Bytes of one matrix of a tile: a tile has four or five, and they should share a cache.
TILE_BYTES = 4 * 2**20


def product_dtype(weight: Tensor) -> torch.dtype:
    """What `linear` with this weight computes in: its own dtype or that of autocast."""
    device = weight.device.type
    if torch.is_autocast_enabled(device) and weight.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return weight.dtype


def multiply(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """left [a, b] @ right [b, c] in the dtype of `right`, widened into `out` when it is given."""
    left = left.to(right.dtype)
    if out is None:
        return torch.mm(left, right)
    if out.dtype == right.dtype:
        return torch.mm(left, right, out=out)
    return out.copy_(torch.mm(left, right))


def multiply_add(left: Tensor, right: Tensor, total: Tensor) -> None:
    """total += left @ right, in the dtype of `right`."""
    left = left.to(right.dtype)
    if total.dtype == right.dtype:
        total.addmm_(left, right)
    else:
        total += torch.mm(left, right)


@dataclass(frozen=True)
class RowLosses:
    """Per row [R]: cross-entropy, L1 distance to the target's law (None without one), argmax."""

    cross_entropy: Tensor
    distance: Tensor | None
    argmax: Tensor


def law_gradient(
    logits: Tensor,
    labels: Tensor,
    law: Tensor | None,
    ce_over_l1: float,
    scratch: Tensor,
    out: Tensor,
) -> RowLosses:
    """Losses of logits [R, V'] for labels int64 [R], and their gradient in `out` [R, V'].

    law [R, V']: the target's probabilities; then `out` is the gradient of ce_over_l1 * CE + L1,
    and the distance leaves out what lies outside the draft vocabulary. None: that of CE alone.
    `scratch` [2, R, V'] is overwritten; `out` may be `logits` itself. With q = softmax(x),
    s = sign(q - p): dCE/dx_j = q_j - [j = label], dL1/dx_j = q_j (s_j - sum_i q_i s_i).
    """
    draft, spare = scratch
    column = labels[:, None]
    best = argmax(logits)
    gap = logits.gather(-1, best[:, None]) - logits.gather(-1, column)
    torch.softmax(logits, -1, out=draft)
    # From two logits: q(label) itself may be too small for its type, the largest q never is.
    cross_entropy = gap - draft.gather(-1, best[:, None]).log()
    distance = None
    if law is None:
        out.copy_(draft)
        ce_over_l1 = 1.0
    else:
        torch.sub(draft, law, out=out)
        distance = torch.abs(out, out=spare).sum(-1)
        out.sign_().mul_(draft)
        out.addcmul_(draft, ce_over_l1 - out.sum(-1, keepdim=True))
    out.scatter_add_(-1, column, out.new_full(column.shape, -ce_over_l1))
    return RowLosses(cross_entropy[:, 0], distance, best)


class ChunkLaws:
    """The target's law of a chunk, and the gradient of several draft laws towards it.

    lm_head [V, H], vocab_ids int64 [V'] or None, at most max_rows rows in a chunk. Gradients are in
    multiples of `unit` and of each row's weight. base_grad [max_rows, V']: the sum over all laws.
    """

    def __init__(
        self, lm_head: Tensor, vocab_ids: Tensor | None, max_rows: int, ce: float, l1: float
    ) -> None:
        self.lm_head = lm_head.detach().to(product_dtype(lm_head))
        self.vocab_ids = vocab_ids
        self.draft_rows = self.lm_head if vocab_ids is None else self.lm_head[vocab_ids]
        self.max_rows = max_rows
        self.unit = l1 if l1 > 0 else ce
        self.ce_over_l1 = ce / self.unit if self.unit > 0 else 0.0
        self.base_grad = self.matrix()
        self.tile = max_rows
        if lm_head.device.type == "cpu":
            row_bytes = self.base_grad.shape[1] * self.base_grad.element_size()
            self.tile = min(max_rows, max(1, TILE_BYTES // row_bytes))
        self.scratch = self.base_grad.new_empty(2, self.tile, self.base_grad.shape[1])
        self.target = self.inside = self.outside = None
        if l1 > 0:
            self.target = self.matrix(columns=len(lm_head))
            self.inside = self.target if vocab_ids is None else self.matrix()
            self.outside = self.target.new_zeros(max_rows)

    def matrix(self, columns: int | None = None) -> Tensor:
        """Memory for the logits of a chunk [max_rows, columns], by default the draft vocabulary's;
        float32 at least."""
        dtype = torch.promote_types(self.lm_head.dtype, torch.float32)
        size = (self.max_rows, columns or len(self.draft_rows))
        return self.lm_head.new_empty(size, dtype=dtype)

    def start(self, target_hidden: Tensor) -> None:
        """Take up the chunk whose target states are target_hidden [R, H]."""
        if self.target is not None:
            multiply(target_hidden, self.lm_head.t(), self.target[: len(target_hidden)])

    def base(self, logits: Tensor, labels: Tensor, weight: float) -> RowLosses:
        """Losses of the base law of logits [R, V'], which stay; begins base_grad, with `weight`."""

        def one(tile: slice, scratch: Tensor) -> RowLosses:
            law, out = self._target_law(tile), self.base_grad[tile]
            found = law_gradient(logits[tile], labels[tile], law, self.ce_over_l1, scratch, out)
            if weight != 1:
                out.mul_(weight)
            return found

        return self._over_tiles(one, len(logits))

    def corrected(
        self, correction: Tensor, base: Tensor, labels: Tensor, weight: float
    ) -> RowLosses:
        """Losses of the law of base + correction, both [R, V']; correction becomes the gradient,
        and weight x gradient is added to base_grad."""

        def one(tile: slice, scratch: Tensor) -> RowLosses:
            logits = correction[tile].add_(base[tile])
            law = None if self.inside is None else self.inside[tile]
            found = law_gradient(logits, labels[tile], law, self.ce_over_l1, scratch, logits)
            self.base_grad[tile].add_(logits, alpha=weight)
            return found

        return self._over_tiles(one, len(correction))

    def _over_tiles(self, one: Callable[[slice, Tensor], RowLosses], rows: int) -> RowLosses:
        tiles = slices(rows, self.tile) or [slice(0, 0)]
        parts = [one(tile, self.scratch[:, : tile.stop - tile.start]) for tile in tiles]
        distances = [part.distance for part in parts if part.distance is not None]
        return RowLosses(
            torch.cat([part.cross_entropy for part in parts]),
            None if self.outside is None else torch.cat(distances) + self.outside[:rows],
            torch.cat([part.argmax for part in parts]),
        )

    def _target_law(self, tile: slice) -> Tensor | None:
        """The target's probabilities of the draft columns, from its logits."""
        if self.target is None or self.inside is None or self.outside is None:
            return None
        whole = torch.softmax(self.target[tile], -1, out=self.target[tile])
        if self.vocab_ids is not None:
            torch.index_select(whole, -1, self.vocab_ids, out=self.inside[tile])
            self.outside[tile] = 1 - self.inside[tile].sum(-1)
        return self.inside[tile]
