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
from xpress_exp.export import Content, target_facts
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


HEAD_GROUPS: dict[str, dict[str, Any]] = {
    "none": {"name": "none"},
    "markov": {"name": "markov", "rank": 6, "variant": "vanilla"},
    "gated": {"name": "markov", "rank": 6, "variant": "gated"},
    "rnn": {"name": "markov", "rank": 6, "variant": "rnn"},
    "gru": {"name": "gru", "rank": 6, "gru_hidden_size": 8, "pure_draft_prefix_len": 1},
    "xpress": {"name": "xpress", "rank": 6, "mix": "strict", "mlp": "swiglu"},
}


@pytest.fixture(scope="session")
def make_content() -> Callable[..., Content]:
    """What the exporter is given for a model of `make_model` with the head of that name; further
    arguments replace keys of the drafter group."""

    def make(target: TargetModel, model: DraftModel, head: str, **drafter: Any) -> Content:
        layers: Any = model.drafter.layers
        width = layers[0].self_attn.head_dim
        group = {
            "name": "dflash",
            "num_layers": len(layers),
            "intermediate_size": layers[0].mlp.gate_proj.out_features,
            "num_heads": layers[0].self_attn.q_proj.out_features // width,
            "num_kv_heads": layers[0].self_attn.k_proj.out_features // width,
            "head_dim": width,
            "block_size": model.slots.block_size,
            "slot_convention": str(model.slots.convention),
            "num_unused_slots": model.slots.num_unused_slots,
            "target_layer_ids": list(target.layer_ids),
            "mask_token_id": model.drafter.mask_token_id,
            "draft_vocab": None if model.vocab_ids is None else "ids.json",
            "init": "scratch",
        }
        return Content(
            {**group, **drafter},
            {**HEAD_GROUPS[head], "anchor_prev": model.head.anchor_prev}
            if head == "xpress"
            else HEAD_GROUPS[head],
            target_facts(target, "tiny"),
            model.state_dict(),
            model.vocab_ids,
            {"embed_tokens.weight": target.embedding, "lm_head.weight": target.lm_head},
        )

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
