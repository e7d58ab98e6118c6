"""Every head on one random block of either slot convention, in float64, and naive forms of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor

from xpress_exp.head import CorrectionHead, GRUHead, MarkovHead, XPressHead
from xpress_exp.solver import BlockState
from xpress_exp.types import ModelDims, SlotConvention, SlotMap

HIDDEN, DRAFTS = 6, 4
HEADS: dict[str, Callable[..., CorrectionHead]] = {
    "vanilla": partial(MarkovHead, rank=3),
    "gated": partial(MarkovHead, rank=3, variant="gated"),
    "rnn": partial(MarkovHead, rank=3, variant="rnn"),
    "gru": partial(GRUHead, rank=3, gru_hidden_size=4),
    "xpress": partial(XPressHead, rank=3),
    "xpress_inclusive": partial(XPressHead, rank=3, mix="inclusive", mlp="silu"),
}


@dataclass(frozen=True)
class Case:
    """A head and a block of N = 4 drafts; all rows of the block are equal."""

    head: CorrectionHead
    block: BlockState

    def reads(self, tokens: Tensor) -> Tensor:
        """Token read by each slot [n, P], for x_0..x_{N-1} = tokens [n, N]."""
        anchor = tokens[:, 0]
        return self.block.slots.previous_tokens(anchor, tokens[:, 1:], anchor)

    def plain_logits(self, tokens: Tensor) -> Tensor:
        """Corrected logits [n, N, V] of x_1..x_N by the plain form of the head, given x_0..x_{N-1}
        as tokens [n, N]."""
        hidden = self.block.hidden[:1].expand(len(tokens), -1, -1)
        z = self.head.code(hidden, self.reads(tokens))[:, self.block.slots.draft_slots]
        return self.head.correct(self.block.base_logits[:1], z)

    def one_by_one(self, noise: Tensor | None = None) -> Tensor:
        """x_1..x_N [N], each the first argmax of a pass of the plain form (+ noise [N, V])."""
        known = [int(self.block.anchor[0])]
        for k in range(DRAFTS):
            padded = torch.tensor([known + [0] * (DRAFTS - len(known))])[:, :DRAFTS]
            row = self.plain_logits(padded)[0, k]
            scores = (row if noise is None else row + noise[k]).tolist()
            known.append(max(range(len(scores)), key=scores.__getitem__))
        return torch.tensor(known[1:])


@pytest.fixture(params=HEADS)
def head_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["fill_in", "shift"])
def convention(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def make_case() -> Callable[..., Case]:
    """head: a name of HEADS or a builder; fresh keeps the initialisation, else all weights are
    noise and the readout is scaled so that corrections matter and no law is saturated."""

    def make(
        head: str | Callable[..., CorrectionHead],
        convention: str,
        vocab: int = 4,
        rows: int = 1,
        fresh: bool = False,
    ) -> Case:
        torch.manual_seed(5)
        slots = SlotMap(SlotConvention(convention), DRAFTS + (convention == "fill_in"))
        dims = ModelDims(HIDDEN, vocab, vocab, slots)
        build = HEADS[head] if isinstance(head, str) else head
        made = build(dims, torch.randn(vocab, HIDDEN, dtype=torch.float64)).double().eval()
        hidden = torch.randn(1, slots.block_size, HIDDEN, dtype=torch.float64)
        base = torch.randn(1, DRAFTS, vocab, dtype=torch.float64)
        anchor = torch.ones(rows, dtype=torch.int64)
        block = BlockState(
            base.expand(rows, -1, -1), hidden.expand(rows, -1, -1), anchor, anchor, slots
        )
        if not fresh:
            with torch.no_grad():
                for parameter in made.parameters():
                    parameter.normal_(std=0.6)
                tokens = torch.randint(vocab, (300, DRAFTS))
                tokens[:, 0] = 1
                change = Case(made, block).plain_logits(tokens) - base
                scale = 1.5 / change[:, -1].std(0).mean()
                made.readout.mul_(scale)
                base.mul_(0.5).sub_(scale * change.mean(0, keepdim=True))
        return Case(made, block)

    return make
