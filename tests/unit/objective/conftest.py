"""Random blocks with everything the objective reads, and a naive per-position loss in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from xpress_exp.head import CorrectionHead
from xpress_exp.objective import CoTrainObjective
from xpress_exp.types import BlockTargets, Losses, SlotConvention, SlotMap

BLOCKS, SIZE, HIDDEN, VOCAB = 5, 4, 7, 11
VOCAB_IDS = [1, 2, 4, 5, 7, 10]
SETTINGS: dict[str, Any] = {
    "ce_weight": 0.1,
    "l1_weight": 0.9,
    "decay_gamma": 4.0,
    "w_anchor": {"start": 0.6, "end": 0.2, "schedule": "linear"},
    "w_consistency": 0.3,
    "consistency_passes": 1,
    "chunk_blocks": 2,
}


@dataclass(frozen=True)
class Case:
    """Blocks of one convention. labels index the draft vocabulary, tokens are target ids."""

    slots: SlotMap
    hidden: Tensor
    lm_head: Tensor
    vocab_ids: Tensor | None
    targets: BlockTargets

    @property
    def denominator(self) -> Tensor:
        """Sum of the weights of these blocks."""
        return self.targets.weights.sum()

    def loss(
        self,
        head: CorrectionHead,
        progress: float = 0.25,
        denominator: Tensor | None = None,
        **settings: Any,
    ) -> Losses:
        objective = CoTrainObjective(**{**SETTINGS, **settings})
        return objective(
            self.hidden,
            head,
            self.lm_head,
            self.vocab_ids,
            self.targets,
            self.slots,
            progress,
            self.denominator if denominator is None else denominator,
        )

    def part(self, blocks: slice) -> Case:
        cut = {name: value[blocks] for name, value in vars(self.targets).items()}
        return replace(self, hidden=self.hidden[blocks], targets=BlockTargets(**cut))

    def ids(self, columns: list[int]) -> list[int]:
        """Target ids of draft columns."""
        return columns if self.vocab_ids is None else [int(self.vocab_ids[c]) for c in columns]


@pytest.fixture
def make_case() -> Callable[..., Case]:
    def make(convention: str = "fill_in", reduced: bool = False, seed: int = 0) -> Case:
        draw = torch.Generator().manual_seed(seed)
        slots = SlotMap(SlotConvention(convention), SIZE)
        vocab_ids = torch.tensor(VOCAB_IDS) if reduced else None
        columns = len(VOCAB_IDS) if reduced else VOCAB

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draw, dtype=torch.float64)

        labels = torch.randint(columns, (BLOCKS, SIZE), generator=draw)
        # Blocks end after 4, 3, 1, 2 and 0 labelled slots: every prefix length occurs.
        alive = torch.arange(SIZE) < torch.tensor([4, 3, 1, 2, 0])[:, None] + slots.first_slot
        weights = slots.decay_weights(SETTINGS["decay_gamma"]) * alive
        anchor = torch.randint(VOCAB, (BLOCKS,), generator=draw)
        before = torch.randint(VOCAB, (BLOCKS,), generator=draw)
        gold = labels if vocab_ids is None else vocab_ids[labels]
        targets = BlockTargets(
            anchor=anchor,
            anchor_previous=before,
            labels=torch.where(weights > 0, labels, 0),
            previous_tokens=slots.previous_tokens(anchor, gold[:, slots.first_slot :], before),
            weights=weights,
            target_hidden=normal(BLOCKS, SIZE, HIDDEN),
        )
        lm_head = normal(VOCAB, HIDDEN).requires_grad_()
        hidden = normal(BLOCKS, SIZE, HIDDEN).requires_grad_()
        return Case(slots, hidden, lm_head, vocab_ids, targets)

    return make


@dataclass(frozen=True)
class Naive:
    """Sums over positions of one law: cross entropy and L1, weighted; acceptance and hits per
    used slot, unweighted; argmax columns [n][used slots]."""

    ce: Tensor
    l1: Tensor
    accept: list[float]
    hit: list[float]
    argmax: list[list[int]]

    @property
    def loss(self) -> Tensor:
        return 0.1 * self.ce + 0.9 * self.l1


@pytest.fixture
def naive_law() -> Callable[..., Naive]:
    """Eq. 14 with a loop over blocks, slots and tokens. previous: tokens read [n][P], or None for
    the base law."""

    def law(case: Case, head: CorrectionHead, previous: Tensor | None) -> Naive:
        targets, slots = case.targets, case.slots
        columns = case.ids(list(range(VOCAB))) if case.vocab_ids is None else VOCAB_IDS
        z = None if previous is None else head.code(case.hidden, previous)
        ce = l1 = torch.zeros((), dtype=torch.float64)
        accept, hit = [0.0] * SIZE, [0.0] * SIZE
        argmax = []
        for block in range(len(case.hidden)):
            row = []
            for slot in range(slots.first_slot, SIZE):
                scores = []
                for column, token in enumerate(columns):
                    score = case.hidden[block, slot] @ case.lm_head[token].detach()
                    if z is not None:
                        score = score + head.readout[column] @ z[block, slot]
                    scores.append(score)
                q = [score.exp() / sum(s.exp() for s in scores) for score in scores]
                row.append(max(range(len(q)), key=lambda column: q[column].item()))
                weight = targets.weights[block, slot].double()
                if weight == 0:
                    continue
                raw = [(targets.target_hidden[block, slot] @ r).item() for r in case.lm_head]
                p = torch.softmax(torch.tensor(raw, dtype=torch.float64), 0).tolist()
                distance = sum(
                    (q[columns.index(token)] - p[token]).abs() if token in columns else p[token]
                    for token in range(VOCAB)
                )
                label = int(targets.labels[block, slot])
                ce = ce - weight * q[label].log()
                l1 = l1 + weight * distance
                accept[slot] += 1 - distance.item() / 2
                hit[slot] += float(row[-1] == label)
            argmax.append(row)
        used = slice(slots.first_slot, SIZE)
        return Naive(ce, l1, accept[used], hit[used], argmax)

    return law
