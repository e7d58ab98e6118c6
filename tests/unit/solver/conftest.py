"""Random heads and blocks in float64, and a tabular head whose laws can be written down."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from xpress_exp.head import CorrectionHead, Dependence
from xpress_exp.solver import BlockState
from xpress_exp.types import ModelDims, SlotConvention, SlotMap

HIDDEN = 5


class TabularHead(CorrectionHead):
    """Base logits plus tables[k][prefix index]: any function of the prefix x_0..x_{k-1}.

    `shift` convention with N = P; prefixes are numbered in base V, oldest token first.
    """

    dependence = Dependence(tokens="prefix", hidden="none")

    def __init__(self, dims: ModelDims, tables: list[Tensor]) -> None:
        super().__init__(dims)
        self.tables = tables
        self.register_buffer("readout", torch.eye(dims.vocab_size, dtype=tables[0].dtype))

    def code(self, hidden: Tensor, previous_tokens: Tensor) -> Tensor:  # noqa: ARG002
        index = torch.zeros_like(previous_tokens[:, 0])
        codes = []
        for slot, table in enumerate(self.tables):
            index = index * self.dims.vocab_size + previous_tokens[:, slot]
            codes.append(table[index])
        return torch.stack(codes, 1)


def base_that_leaves_a_choice(head: CorrectionHead, hidden: Tensor) -> Tensor:
    """Base logits [1, N, V'] that cancel the mean correction; the readout is scaled so that
    corrections vary by 2 over prefixes. Tokens then matter and no law is saturated."""
    slots = head.dims.slots
    tokens = torch.randint(head.dims.vocab_size, (500, slots.block_size))
    z = head.code(hidden.expand(500, -1, -1), tokens)[:, slots.draft_slots]
    if z.shape[-1]:
        head.readout.mul_(2 / (z @ head.readout.T)[:, -1].std(0).mean())
    correction = (z @ head.readout.T).mean(0, keepdim=True)
    return torch.randn(correction.shape, dtype=torch.float64) - correction


@pytest.fixture
def make_case():
    """(head with random weights, block of b equal rows) in float64; small V and N."""

    def make(
        kind: type,
        convention: str = "fill_in",
        vocab: int = 4,
        drafts: int = 4,
        rows: int = 1,
        vocab_ids: Tensor | None = None,
        **config: Any,
    ) -> tuple[CorrectionHead, BlockState]:
        torch.manual_seed(11)
        slots = SlotMap(SlotConvention(convention), drafts + (convention == "fill_in"))
        draft_vocab = vocab if vocab_ids is None else len(vocab_ids)
        dims = ModelDims(HIDDEN, vocab, draft_vocab, slots)
        embedding = torch.randn(vocab, HIDDEN, dtype=torch.float64)
        head = kind(dims, embedding, **config).double().eval()
        hidden = torch.randn(1, slots.block_size, HIDDEN, dtype=torch.float64)
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.normal_(std=0.5)
            base_logits = base_that_leaves_a_choice(head, hidden)
        block = BlockState(
            base_logits=base_logits.expand(rows, -1, -1),
            hidden=hidden.expand(rows, -1, -1),
            anchor=torch.full((rows,), 1),
            anchor_previous=torch.full((rows,), 2),
            slots=slots,
            vocab_ids=vocab_ids,
        )
        return head, block

    return make


@pytest.fixture
def tabular():
    """(head, block of `rows` rows, target tables): V = N = 3, refined law = target + noise."""

    def make(rows: int) -> tuple[TabularHead, BlockState, list[Tensor]]:
        vocab, drafts = 3, 3
        generator = torch.Generator().manual_seed(2)
        target = [
            1.5 * torch.randn(vocab ** (k + 1), vocab, generator=generator)
            for k in range(drafts + 1)
        ]
        base = torch.randn(drafts, vocab, generator=generator)
        refined = [
            target[k] + 0.5 * torch.randn(target[k].shape, generator=generator)
            for k in range(drafts)
        ]
        slots = SlotMap(SlotConvention.SHIFT, drafts)
        head = TabularHead(
            ModelDims(1, vocab, vocab, slots), [refined[k] - base[k] for k in range(drafts)]
        )
        anchor = torch.zeros(rows, dtype=torch.int64)
        block = BlockState(
            base.expand(rows, -1, -1), torch.zeros(rows, drafts, 1), anchor, anchor, slots
        )
        return head, block, target

    return make
