"""Small models whose every law can be written down: tables, and real heads with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from xpress_exp.head import CorrectionHead, Dependence, GRUHead, MarkovHead, NoHead, XPressHead
from xpress_exp.law import Truncation, probabilities, processed
from xpress_exp.solver import BlockState
from xpress_exp.solver.contract import law_logits, refined_logits
from xpress_exp.types import ModelDims, SlotConvention, SlotMap

HIDDEN = 5
HEADS: dict[str, Any] = {
    "none": NoHead,
    "markov": lambda *a: MarkovHead(*a, rank=4),
    "gated": lambda *a: MarkovHead(*a, rank=4, variant="gated"),
    "rnn": lambda *a: MarkovHead(*a, rank=4, variant="rnn"),
    "gru": lambda *a: GRUHead(*a, rank=4, gru_hidden_size=6),
    "xpress": lambda *a: XPressHead(*a, rank=4),
}


class TabularHead(CorrectionHead):
    """Base logits plus tables[k][prefix]: any function of the drafts x_1..x_{k-1}, numbered in
    base V, oldest token first. `shift` convention with N = P; the anchor changes nothing."""

    dependence = Dependence(tokens="prefix", hidden="none")

    def __init__(self, dims: ModelDims, tables: list[Tensor]) -> None:
        super().__init__(dims)
        self.tables = tables
        self.register_buffer("readout", torch.eye(dims.vocab_size, dtype=torch.float64))

    def code(self, hidden: Tensor, previous_tokens: Tensor) -> Tensor:  # noqa: ARG002
        drafts = previous_tokens[:, 1:]
        return torch.stack(
            [
                table[prefix_index(drafts, k, self.dims.vocab_size)]
                for k, table in enumerate(self.tables)
            ],
            1,
        )


def prefix_index(tokens: Tensor, length: int, vocab: int) -> Tensor:
    """Number of tokens[:, :length] in base `vocab`, int64 [rows]."""
    index = torch.zeros_like(tokens[:, 0]) if tokens.shape[1] else tokens.new_zeros(len(tokens))
    for position in range(length):
        index = index * vocab + tokens[:, position]
    return index


@dataclass(frozen=True)
class Toy:
    """A head, one block of it, and the target's logits target[k] [V**k, V] after k drafts."""

    head: CorrectionHead
    block: BlockState
    target: list[Tensor]
    temperature: float = 1.0

    @property
    def vocab(self) -> int:
        return self.target[0].shape[-1]

    @property
    def num_drafts(self) -> int:
        return len(self.target) - 1

    def filtered(self, truncation: Truncation, temperature: float) -> Toy:
        block = replace(self.block, truncation=truncation)
        return replace(self, block=block, temperature=temperature)

    def rows(self, count: int) -> BlockState:
        """The block `count` times."""
        names = ("base_logits", "hidden", "anchor", "anchor_previous")
        return replace(
            self.block,
            **{n: (t := getattr(self.block, n)).expand(count, *t.shape[1:]) for n in names},
        )

    def all_drafts(self) -> Tensor:
        ids = torch.arange(self.vocab) if self.block.vocab_ids is None else self.block.vocab_ids
        return torch.cartesian_prod(*[ids] * self.num_drafts).reshape(-1, self.num_drafts)

    def refined(self, drafts: Tensor) -> Tensor:
        """Law logits [rows, N, V'] of a pass that reads `drafts` [rows, N]."""
        block = self.rows(len(drafts))
        with torch.no_grad():
            prepared = self.head.prepare(block.hidden)
            return refined_logits(block, self.head, prepared, drafts, self.temperature)

    def base(self) -> list[Tensor]:
        """Contexts of the bare drafter: for every position [1, V']."""
        return list(law_logits(self.block, self.block.base_logits, self.temperature)[0][:, None])

    def prefixes(self) -> list[Tensor]:
        """Contexts of the head: for every position, the logits after each prefix [prefixes, V']."""
        drafts = self.all_drafts()
        logits, size = self.refined(drafts), round(len(drafts) ** (1 / self.num_drafts))
        return [logits[:: size ** (self.num_drafts - k), k] for k in range(self.num_drafts)]

    def solver_contexts(self) -> list[Tensor]:
        return [torch.cat(pair) for pair in zip(self.base(), self.prefixes(), strict=True)]

    def target_contexts(self) -> list[Tensor]:
        return [processed(t, self.temperature, self.block.truncation) for t in self.target]

    def target_logits(self, tokens: Tensor) -> Tensor:
        """Raw logits [rows, N+1, V] after every prefix of the drafts."""
        rows = [t[prefix_index(tokens, k, self.vocab)] for k, t in enumerate(self.target)]
        return torch.stack(rows, 1)

    def completed(self, masses: Sequence[Tensor]) -> Tensor:
        """Law [V**(N+1)] when masses[n] [V**(n+1)] of texts end after n+1 tokens and plain sampling
        completes them."""
        total = masses[0]
        for n in range(1, self.num_drafts + 1):
            law = probabilities(self.target[n], self.temperature, self.block.truncation)
            total = (total[:, None] * law).flatten() + masses[n]
        return total

    def law(self) -> Tensor:
        """Law of plain sampling, [V**(N+1)]."""
        first = probabilities(self.target[0], self.temperature, self.block.truncation)
        sizes = [self.vocab ** (n + 1) for n in range(1, self.num_drafts + 1)]
        return self.completed([first[0], *[torch.zeros(s, dtype=torch.float64) for s in sizes]])


def tabular(vocab: int = 3, drafts: int = 3) -> Toy:
    """Strongly dependent target tokens; the refined law is near them, the base law is not."""
    draw = torch.Generator().manual_seed(2)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    target = [2.0 * normal(vocab**k, vocab) for k in range(drafts + 1)]
    base = normal(drafts, vocab)
    tables = [target[k] + 0.7 * normal(vocab**k, vocab) - base[k] for k in range(drafts)]
    slots = SlotMap(SlotConvention.SHIFT, drafts)
    head = TabularHead(ModelDims(1, vocab, vocab, slots), tables)
    anchor = torch.zeros(1, dtype=torch.int64)
    hidden = torch.zeros(1, drafts, 1, dtype=torch.float64)
    return Toy(head, BlockState(base[None], hidden, anchor, anchor, slots), target)


def with_head(kind: str, convention: str, vocab_ids: Tensor | None = None) -> Toy:
    """A real head with random weights, and a target that has nothing to do with it; V = N = 3."""
    torch.manual_seed(5)
    vocab, count = 3, 3
    slots = SlotMap(SlotConvention(convention), count + (convention == "fill_in"))
    size = vocab if vocab_ids is None else len(vocab_ids)
    dims = ModelDims(HIDDEN, vocab, size, slots)
    head = HEADS[kind](dims, torch.randn(vocab, HIDDEN, dtype=torch.float64)).double().eval()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.8)
    head.requires_grad_(False).refold()
    block = BlockState(
        torch.randn(1, count, size, dtype=torch.float64),
        torch.randn(1, slots.block_size, HIDDEN, dtype=torch.float64),
        torch.tensor([1]),
        torch.tensor([2]),
        slots,
        vocab_ids,
    )
    target = [torch.randn(vocab**k, vocab, dtype=torch.float64) for k in range(count + 1)]
    return undecided(Toy(head, block, target))


def undecided(toy: Toy) -> Toy:
    """The readout scaled so that corrections vary by 2 over prefixes, and base logits that cancel
    their mean: tokens then matter, and no law is saturated."""
    bare = replace(toy, block=replace(toy.block, base_logits=0 * toy.block.base_logits))
    toy.head.readout.mul_(2 / bare.refined(toy.all_drafts())[:, -1].std(0).mean())
    mean = bare.refined(toy.all_drafts()).mean(0, keepdim=True)
    return replace(toy, block=replace(toy.block, base_logits=toy.block.base_logits - mean))
