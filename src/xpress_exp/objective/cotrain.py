"""The co-training objective of drafter and head (eq. 14-15), the same for every head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from xpress_exp.head.contract import CorrectionHead
from xpress_exp.objective.fused import TermWeights, fused_loss
from xpress_exp.objective.schedule import WeightSchedule
from xpress_exp.objective.term import cross_entropy, l1_distance
from xpress_exp.objective.vocab_chunk import chunked_loss
from xpress_exp.types import BlockTargets, Losses, SlotMap

Backward = Literal["fused", "autograd"]


class CoTrainObjective:
    """L(p^r) + w_anchor L(p^b) + w_consistency L(p^r_hat), each L of eq. 14.

    A head that reads no tokens has one law only: its loss is L(p^b) with weight 1, which makes
    `head=none` the fair control. `consistency_passes` > 1 averages the loss over that many
    free-running Jacobi passes (the released training used 3, the paper has 1). backward 'fused'
    takes gradients by hand-written formulas, 'autograd' by automatic differentiation of the loss
    as written below: the reference, equal up to rounding, slower and larger. Raises ValueError
    for consistency_passes < 1, an unknown backward or an unknown schedule.
    """

    def __init__(
        self,
        ce_weight: float,
        l1_weight: float,
        decay_gamma: float,
        w_anchor: Mapping[str, Any],
        w_consistency: float,
        consistency_passes: int,
        chunk_blocks: int,
        backward: Backward = "fused",
    ) -> None:
        if backward not in get_args(Backward):
            raise ValueError(
                f"objective.backward={backward!r} is unknown; use one of {get_args(Backward)}"
            )
        if consistency_passes < 1:
            raise ValueError(
                f"objective.consistency_passes={consistency_passes} must be at least 1; "
                "use objective.w_consistency=0 for no consistency term"
            )
        self.ce_weight = ce_weight
        self.l1_weight = l1_weight
        self.decay_gamma = decay_gamma
        self.w_anchor = WeightSchedule(**w_anchor)
        self.w_consistency = w_consistency
        self.consistency_passes = consistency_passes
        self.chunk_blocks = chunk_blocks
        self.backward = backward

    def __call__(
        self,
        hidden: Tensor,
        head: CorrectionHead,
        lm_head: Tensor,
        vocab_ids: Tensor | None,
        targets: BlockTargets,
        slots: SlotMap,
        progress: float,
        denominator: Tensor,
    ) -> Losses:
        """Loss of one micro-batch of blocks.

        hidden [n, P, H] of the drafter; lm_head [V, H] of the target; vocab_ids int64 [V'] of a
        reduced draft vocabulary or None; progress 0..1 of training; denominator: scalar, the sum of
        `targets.weights` over all micro-batches and ranks of this optimizer step, so that the sum
        of the totals is the globally pooled weighted mean.
        """
        if self.backward == "fused" and torch.is_grad_enabled():
            numerator, sums = fused_loss(
                hidden,
                head,
                lm_head,
                vocab_ids,
                targets,
                slots,
                self._term_weights(progress),
                self.chunk_blocks,
            )
        else:
            step = _ChunkStep(self, head, lm_head, vocab_ids, targets, slots, progress)
            numerator, sums = chunked_loss(step, hidden, list(head.parameters()), self.chunk_blocks)
        counts = {name: sums.pop(name) for name in ("weight", "slot_count")}
        return Losses(total=numerator / denominator, sums=sums, counts=counts)

    def _term_weights(self, progress: float) -> TermWeights:
        return TermWeights(
            ce=self.ce_weight,
            l1=self.l1_weight,
            base=self.w_anchor(progress),
            consistency=self.w_consistency,
            passes=self.consistency_passes,
        )


def _logits(hidden: Tensor, rows: Tensor) -> Tensor:
    """hidden [..., H] times rows [V', H], in float32 at least: probabilities of half-precision
    logits would be too coarse."""
    # As one matrix: linear multiplies a sliced 3-D input block by block, six times slower.
    flat = hidden.reshape(-1, hidden.shape[-1]).to(rows.dtype)
    logits = torch.nn.functional.linear(flat, rows).unflatten(0, hidden.shape[:-1])
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


class _ChunkStep:
    """Numerator and statistics of some blocks; one object per micro-batch."""

    def __init__(
        self,
        objective: CoTrainObjective,
        head: CorrectionHead,
        lm_head: Tensor,
        vocab_ids: Tensor | None,
        targets: BlockTargets,
        slots: SlotMap,
        progress: float,
    ) -> None:
        self.objective = objective
        self.head = head
        self.lm_head = lm_head
        self.vocab_ids = vocab_ids
        self.draft_rows = lm_head if vocab_ids is None else lm_head[vocab_ids]
        self.targets = targets
        self.slots = slots
        # Slot 0 of fill_in holds the anchor: it predicts nothing, so it needs no logits.
        self.used = slice(slots.first_slot, slots.block_size)
        self.w_anchor = objective.w_anchor(progress)

    def __call__(self, hidden: Tensor, blocks: slice) -> tuple[Tensor, dict[str, Tensor]]:
        targets = self.targets
        weights = targets.weights[blocks, self.used]
        labels = targets.labels[blocks, self.used]
        law = None
        if self.objective.l1_weight > 0:
            law = self._target_law(targets.target_hidden[blocks, self.used])
        base = _logits(hidden[:, self.used], self.draft_rows)

        def measure(logits: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            return self._law_loss(logits, labels, law, weights)

        sums: dict[str, Tensor] = {
            "weight": weights.sum(),
            "slot_count": (weights > 0).sum(0).float(),
        }
        base_loss, base_sums = measure(base)
        sums |= {f"base_{name}": value for name, value in base_sums.items()}
        if self.head.dependence.tokens == "none":
            sums |= {f"refined_{name}": value for name, value in base_sums.items()}
            return base_loss, sums
        code = self.head.code(hidden, targets.previous_tokens[blocks])
        loss, refined_sums = measure(self.head.correct(base, code[:, self.used]))
        sums |= {f"refined_{name}": value for name, value in refined_sums.items()}
        loss = loss + self.w_anchor * base_loss
        if self.objective.w_consistency > 0:
            consistency = self._consistency(hidden, base, blocks, measure)
            sums["consistency_loss"] = consistency.detach()
            loss = loss + self.objective.w_consistency * consistency
        return loss, sums

    def _consistency(self, hidden: Tensor, base: Tensor, blocks: slice, measure: Any) -> Tensor:
        """Mean loss of p^r_hat: the head reads its own argmax guesses, labels stay gold."""
        total = base.new_zeros(())
        guess = base.detach().argmax(-1)
        for _ in range(self.objective.consistency_passes):
            tokens = guess if self.vocab_ids is None else self.vocab_ids[guess]
            previous = self.slots.previous_tokens(
                self.targets.anchor[blocks], tokens, self.targets.anchor_previous[blocks]
            )
            logits = self.head.correct(base, self.head.code(hidden, previous)[:, self.used])
            total = total + measure(logits)[0]
            guess = logits.detach().argmax(-1)
        return total / self.objective.consistency_passes

    @torch.no_grad()
    def _target_law(self, target_hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Target probabilities of the draft columns [..., V'] and the mass outside [...]."""
        law = torch.softmax(_logits(target_hidden, self.lm_head), -1)
        if self.vocab_ids is None:
            return law, law.new_zeros(law.shape[:-1])
        inside = law[..., self.vocab_ids]
        return inside, 1 - inside.sum(-1)

    def _law_loss(
        self,
        logits: Tensor,
        labels: Tensor,
        law: tuple[Tensor, Tensor] | None,
        weights: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Weighted sum of eq. 14 over slots, and detached sums for logging.

        law: target probabilities and the mass outside, None without an L1 term (a third of the
        work). hit [P used]: argmax equals the label; with a law, accept: summed expected
        acceptance 1 - ||q - p||_1 / 2 per slot.
        """
        log_draft = torch.log_softmax(logits, -1)
        ce = (weights * cross_entropy(log_draft, labels)).sum()
        seen = (weights > 0).float()
        hit = (logits.argmax(-1) == labels).float()
        statistics = {"ce": ce.detach(), "hit": (seen * hit).sum(0)}
        loss = self.objective.ce_weight * ce
        if law is not None:
            distance = l1_distance(log_draft, *law)
            l1 = (weights * distance).sum()
            statistics |= {
                "l1": l1.detach(),
                "accept": (seen * (1 - distance.detach() / 2)).sum(0),
            }
            loss = loss + self.objective.l1_weight * l1
        return loss, statistics
