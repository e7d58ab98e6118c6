"""The real model, the shipped drafter and heads of any rank, as the benchmarks of decoding need
them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xpress_exp.builders import DraftModel, build_target, load_content
from xpress_exp.export import read_folder
from xpress_exp.few_rows import LayoutChoice
from xpress_exp.grid import compose_points
from xpress_exp.head import CorrectionHead, GRUHead, MarkovHead, XPressHead
from xpress_exp.schema import initial_folder
from xpress_exp.solver import BlockState
from xpress_exp.target import TargetModel
from xpress_exp.task import BuiltinHeldout
from xpress_exp.types import ModelDims, SlotMap

RANK = 256


@dataclass(frozen=True)
class World:
    """Two views of one target: Transformers' passes, and those made for decoding."""

    plain: TargetModel
    fast: TargetModel
    choice: LayoutChoice
    folder: Path

    def drafter(self, fast: bool, head: str = "none") -> DraftModel:
        """The shipped drafter, with an untrained head of the given name and a readout that
        changes tokens."""
        target = self.fast if fast else self.plain
        model = load_content(read_folder(self.folder), self.folder, target)
        if head != "none":
            dims = model.head.dims
            model.head = make_head(head, dims, target.embedding)
        if fast:
            model.make_fast(self.choice)
        return model

    def prompts(self, count: int) -> list[list[int]]:
        """Token ids of the first held-out prompts."""
        asked = BuiltinHeldout().load(count)
        return [list(self.plain.encode_chat(list(prompt.messages))) for prompt in asked]


def world() -> World:
    """SmolLM2 twice, converted once into the cache folder."""
    [cfg] = compose_points([])
    choice = LayoutChoice(Path(cfg.paths.cache))
    plain, fast = build_target(cfg), build_target(cfg)
    reason = fast.make_fast(choice)
    assert not reason, reason
    folder = initial_folder(cfg)
    assert folder is not None
    return World(plain, fast, choice, folder)


def make_head(name: str, dims: ModelDims, embedding: Tensor, rank: int = RANK) -> CorrectionHead:
    """An untrained head in eval mode whose readout moves the argmax of unit-scale base logits."""
    torch.manual_seed(0)
    kinds: dict[str, Any] = {
        "markov": lambda: MarkovHead(dims, embedding, rank),
        "gru": lambda: GRUHead(dims, embedding, rank, gru_hidden_size=2 * rank),
        "xpress": lambda: XPressHead(dims, embedding, rank),
    }
    head = kinds[name]()
    with torch.no_grad():
        head.readout.normal_(std=rank**-0.5)
        if name == "xpress":
            head.mix.normal_(std=0.3)
    head.eval().requires_grad_(False).refold()
    return head


def random_block(slots: SlotMap, hidden_size: int, vocab_size: int, seed: int = 0) -> BlockState:
    """One block of random hidden states and base logits."""
    generator = torch.Generator().manual_seed(seed)
    return BlockState(
        base_logits=torch.randn(1, slots.num_draft_tokens, vocab_size, generator=generator),
        hidden=torch.randn(1, slots.block_size, hidden_size, generator=generator),
        anchor=torch.tensor([5]),
        anchor_previous=torch.tensor([7]),
        slots=slots,
    )
