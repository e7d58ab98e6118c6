"""Tiny models shared by unit and integration tests: on the CPU, in float64 by default."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

# Before Transformers is imported: no test may reach for the network.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from torch import Tensor

from xpress_exp.builders import DraftModel
from xpress_exp.drafter import DFlashDrafter
from xpress_exp.head import CorrectionHead, GRUHead, MarkovHead, NoHead, XPressHead
from xpress_exp.target import TargetModel, TinyTarget, tiny_target
from xpress_exp.types import ModelDims, SlotConvention, SlotMap, TrainBatch

HEADS: dict[str, Callable[[ModelDims, Tensor], CorrectionHead]] = {
    "none": NoHead,
    "markov": functools.partial(MarkovHead, rank=6),
    "gated": functools.partial(MarkovHead, rank=6, variant="gated"),
    "rnn": functools.partial(MarkovHead, rank=6, variant="rnn"),
    "gru": functools.partial(GRUHead, rank=6, gru_hidden_size=8),
    "xpress": functools.partial(XPressHead, rank=6),
}


@pytest.fixture(scope="session")
def make_target() -> Callable[..., TinyTarget]:
    """Cached `tiny_target`; float64 unless asked otherwise."""

    @functools.cache
    def make(family: str = "llama", **arguments: Any) -> TinyTarget:
        return tiny_target(family, **{"dtype": torch.float64, **arguments})

    return make


@pytest.fixture(scope="session")
def make_model() -> Callable[..., DraftModel]:
    """A drafter with a head on a target. `randomize` > 0 replaces every weight by noise of that
    scale, so that no path is silent; 0 keeps the initialisation."""

    def make(
        target: TargetModel,
        head: str = "none",
        convention: str = "fill_in",
        block_size: int = 4,
        vocab_ids: Tensor | None = None,
        randomize: float = 0.0,
        **drafter: Any,
    ) -> DraftModel:
        slots = SlotMap(SlotConvention(convention), block_size)
        size = target.vocab_size if vocab_ids is None else len(vocab_ids)
        dims = ModelDims(target.hidden_size, target.vocab_size, size, slots)
        torch.manual_seed(11)
        settings = {"num_layers": 2, "intermediate_size": 40, "num_heads": 4, "num_kv_heads": 2}
        made = DFlashDrafter(
            dims,
            feature_size=target.feature_size,
            token_embedding=target.embedding,
            rope_inv_freq=target.rope_inv_freq,
            rope_scale=target.rope_scale,
            head_dim=2 * len(target.rope_inv_freq),
            **{**settings, "mask_token_id": 3, **drafter},
        )
        model = DraftModel(made, HEADS[head](dims, target.embedding), target.lm_head, vocab_ids)
        model.to(target.dtype)
        if randomize:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.normal_(std=randomize)
        return model.eval()

    return make


@pytest.fixture(scope="session")
def pack() -> Callable[..., TrainBatch]:
    """Documents (prompt ids, response ids) end to end, each run through the target on its own."""

    def make(
        target: TargetModel, documents: list[tuple[list[int], list[int]]], anchors: list[int]
    ) -> TrainBatch:
        texts = [torch.tensor([*prompt, *response]) for prompt, response in documents]
        outputs = [target.forward(text[None], num_logits=0) for text in texts]
        lengths = torch.tensor([len(text) for text in texts])
        generated = [[False] * len(prompt) + [True] * len(rest) for prompt, rest in documents]
        return TrainBatch(
            step=0,
            input_ids=torch.cat(texts),
            document_ids=torch.arange(len(texts)).repeat_interleave(lengths),
            position_ids=torch.cat([torch.arange(len(text)) for text in texts]),
            loss_mask=torch.tensor([flag for flags in generated for flag in flags]),
            anchors=torch.tensor(anchors),
            features=torch.cat([output.features[0] for output in outputs]),
            last_hidden=torch.cat([output.last_hidden[0] for output in outputs]),
        )

    return make
