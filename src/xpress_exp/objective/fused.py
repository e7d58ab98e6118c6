"""The co-training loss with a backward pass written by hand: the fast path of `CoTrainObjective`.

Value and gradients are those of the plain path up to rounding. What it saves: one target softmax
and one matrix of base logits serve all laws; gradients replace the logits in place, in buffers
that all chunks share; the gradients of the base logits are added up before their one product with
the LM head; the head's own backward pass runs once, after the last chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from xpress_exp.head.contract import CorrectionHead
from xpress_exp.objective.law_gradient import (
    ChunkLaws,
    RowLosses,
    multiply,
    multiply_add,
    product_dtype,
)
from xpress_exp.objective.vocab_chunk import slices
from xpress_exp.types import BlockTargets, SlotMap


@dataclass(frozen=True)
class TermWeights:
    """Weights of eq. 14 (ce, l1) and of the laws in eq. 15. The refined law weighs 1; consistency
    is the weight of the mean over `passes` free-running passes. A head that reads no tokens has
    the base law alone, with weight 1."""

    ce: float
    l1: float
    base: float
    consistency: float
    passes: int


def fused_loss(
    hidden: Tensor,
    head: CorrectionHead,
    lm_head: Tensor,
    vocab_ids: Tensor | None,
    targets: BlockTargets,
    slots: SlotMap,
    terms: TermWeights,
    chunk_blocks: int,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Numerator of the loss and detached statistics; tensors as in `CoTrainObjective`.

    The numerator is differentiable once, in `hidden` and the head's parameters. `head.code` must
    give the same codes for the same arguments, block by block.
    """
    run = _Run(hidden, head, lm_head, vocab_ids, targets, slots, terms, chunk_blocks)
    with torch.no_grad():
        for blocks in slices(len(hidden), chunk_blocks):
            run.chunk(blocks)
    sources, grads = [hidden], [run.hidden_grad.view_as(hidden)]
    if run.corrections:
        # All laws in one call: each call would make a dense gradient of the token table.
        read = run.previous.flatten(0, 1)
        code = head.code(hidden.repeat(run.corrections, 1, 1), read)
        sources += [code, head.readout]
        grads += [run.code_grad.view_as(code), run.readout_grad]
    total: Any = _WithGradients.apply(run.total, grads, *sources)
    return total, run.sums


@dataclass(frozen=True)
class _Rows:
    """The slots of a chunk that count: index into all [n * P], slot, label, weight, each [R]."""

    index: Tensor
    slot: Tensor
    labels: Tensor
    weights: Tensor


class _Run:
    """Gradients and sums of one micro-batch, chunk by chunk. corrections: how many laws the head
    corrects (0: the base law is all there is); law 0 is teacher forced, the others run freely."""

    def __init__(
        self,
        hidden: Tensor,
        head: CorrectionHead,
        lm_head: Tensor,
        vocab_ids: Tensor | None,
        targets: BlockTargets,
        slots: SlotMap,
        terms: TermWeights,
        chunk_blocks: int,
    ) -> None:
        self.hidden, self.head, self.vocab_ids = hidden.detach().contiguous(), head, vocab_ids
        self.targets, self.slots, self.terms = targets, slots, terms
        rows = min(chunk_blocks, len(hidden)) * (slots.block_size - slots.first_slot)
        self.laws = ChunkLaws(lm_head, vocab_ids, rows, terms.ce, terms.l1)
        self.base = self.laws.matrix()
        self.total = self.base.new_zeros(())
        self.hidden_grad = torch.zeros_like(self.hidden).flatten(0, 1)
        self.corrections = 0
        if head.dependence.tokens != "none":
            self.corrections = 1 + (terms.passes if terms.consistency > 0 else 0)
            self.logits = self.laws.matrix()
            self.readout = head.readout.detach().to(product_dtype(head.readout))
            self.readout_grad = torch.zeros_like(head.readout)
            size = (self.corrections, len(self.hidden_grad), self.readout.shape[1])
            self.code_grad = head.readout.new_zeros(size)
            self.previous = targets.previous_tokens.repeat(self.corrections, 1, 1)
        counts = targets.weights > 0
        # Nothing reads a slot behind the last one that counts: tokens go forward only.
        self.alive = counts.flip(1).cumsum(1).flip(1) > 0
        self.alive[:, : slots.first_slot] = False
        self.sums = {
            "weight": targets.weights[:, slots.first_slot :].sum(),
            "slot_count": counts[:, slots.first_slot :].sum(0).float(),
        }

    def chunk(self, blocks: slice) -> None:
        """Add losses, statistics and gradients of some blocks."""
        rows = self._rows(blocks)
        states = self.hidden.flatten(0, 1)[rows.index]
        base = self.base[: len(rows.index)]
        multiply(states, self.laws.draft_rows.t(), base)
        self.laws.start(self.targets.target_hidden.flatten(0, 1)[rows.index])
        alone = not self.corrections
        losses = self.laws.base(base, rows.labels, 1.0 if alone else self.terms.base)
        self._record("base", losses, rows, 1.0 if alone else self.terms.base)
        if alone:
            self._record("refined", losses, rows, 0.0)
        for law in range(self.corrections):
            if law:
                self.previous[law, blocks] = self._previous(losses.argmax, rows, blocks)
            # The first guess of the free-running passes is the base law's.
            found = self._correct(base, law, rows, blocks)
            losses = found if law else losses
        gradient = multiply(self.laws.base_grad[: len(base)], self.laws.draft_rows)
        scale = rows.weights[:, None] * self.laws.unit
        self.hidden_grad[rows.index] = (gradient * scale).to(self.hidden_grad.dtype)

    def _rows(self, blocks: slice) -> _Rows:
        size = self.slots.block_size
        index = self.alive[blocks].flatten().nonzero()[:, 0] + blocks.start * size
        weights = self.targets.weights.flatten()[index].to(self.base.dtype)
        return _Rows(index, index % size, self.targets.labels.flatten()[index], weights)

    def _correct(self, base: Tensor, law: int, rows: _Rows, blocks: slice) -> RowLosses:
        """One corrected law: losses, and gradients of its codes and of the readout."""
        code = self.head.code(self.hidden[blocks], self.previous[law, blocks])
        inside = rows.index - blocks.start * self.slots.block_size
        code = code.flatten(0, 1)[inside].to(self.readout.dtype)
        logits = self.logits[: len(base)]
        multiply(code, self.readout.t(), logits)
        weight = self.terms.consistency / self.terms.passes if law else 1.0
        losses = self.laws.corrected(logits, base, rows.labels, weight)
        self._record("consistency" if law else "refined", losses, rows, weight)
        scale = rows.weights[:, None] * (weight * self.laws.unit)
        grad = multiply(logits, self.readout) * scale
        self.code_grad[law, rows.index] = grad.to(self.code_grad.dtype)
        multiply_add(logits.t(), code * scale, self.readout_grad)
        return losses

    def _previous(self, guess: Tensor, rows: _Rows, blocks: slice) -> Tensor:
        """Tokens [blocks, P] that the head reads when it runs on its own guesses [R]."""
        tokens = torch.zeros_like(self.targets.labels)
        tokens.view(-1)[rows.index] = guess if self.vocab_ids is None else self.vocab_ids[guess]
        targets = self.targets
        return self.slots.previous_tokens(
            targets.anchor[blocks],
            tokens[blocks, self.slots.first_slot :],
            targets.anchor_previous[blocks],
        )

    def _record(self, name: str, losses: RowLosses, rows: _Rows, weight: float) -> None:
        """Add weight x loss to the total, and the statistics of the plain path."""
        ce = (rows.weights * losses.cross_entropy).sum()
        loss = self.terms.ce * ce
        seen = (rows.weights > 0).float()
        found = {"ce": ce, "hit": self._by_slot(seen * (losses.argmax == rows.labels), rows)}
        if losses.distance is not None:
            l1 = (rows.weights * losses.distance).sum()
            loss = loss + self.terms.l1 * l1
            accept = seen * (1 - losses.distance / 2)
            found |= {"l1": l1, "accept": self._by_slot(accept, rows)}
        self.total += weight * loss
        if name == "consistency":
            found = {"loss": loss / self.terms.passes}
        for key, value in found.items():
            label = f"{name}_{key}"
            self.sums[label] = self.sums[label] + value if label in self.sums else value

    def _by_slot(self, values: Tensor, rows: _Rows) -> Tensor:
        """Sums of values [R] per used slot."""
        sums = values.new_zeros(self.slots.block_size).index_add_(0, rows.slot, values)
        return sums[self.slots.first_slot :]


class _WithGradients(torch.autograd.Function):
    """A scalar whose gradients in `sources` are known."""

    @staticmethod
    def forward(ctx: Any, total: Tensor, grads: list[Tensor], *_sources: Tensor) -> Tensor:
        ctx.save_for_backward(*grads)
        return total.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        (grad,) = grad_outputs
        return (None, None, *(saved * grad for saved in ctx.saved_tensors))
