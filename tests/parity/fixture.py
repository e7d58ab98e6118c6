"""Small random models and a packed training batch: the same weights and inputs for both sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from xpress_exp.drafter import DFlashDrafter, block_mask
from xpress_exp.head import CorrectionHead, MarkovHead, NoHead, XPressHead
from xpress_exp.types import ModelDims, SlotConvention, SlotMap, TrainBatch

HIDDEN, VOCAB, BLOCK, RANK, MASK_ID = 24, 40, 5, 6, 3
HEAD_DIM, THETA, NUM_FEATURES = 8, 100.0, 2
LAYERS, INTERMEDIATE, NUM_HEADS, NUM_KV_HEADS = 2, 28, 4, 2
# (prompt tokens, response tokens) of each packed document, and anchors whose blocks lie inside.
DOCUMENTS = ((4, 13), (3, 9), (6, 12))
ANCHORS = (4, 7, 11, 20, 23, 35, 38, 41)

# What a peer needs to build the same architecture; names of Qwen3's configuration.
ARCHITECTURE: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "vocab_size": VOCAB,
    "num_hidden_layers": LAYERS,
    "intermediate_size": INTERMEDIATE,
    "num_attention_heads": NUM_HEADS,
    "num_key_value_heads": NUM_KV_HEADS,
    "head_dim": HEAD_DIM,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
}


def noise(seed: int, *shape: int, scale: float = 1.0) -> Tensor:
    """Normal numbers, float64; rounded copies of them are the float32 fixtures."""
    draw = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=draw, dtype=torch.float64)


def randomize(module: nn.Module, seed: int, scale: float = 0.3) -> None:
    """Replace every parameter by noise (norm weights around 1), so that no path is silent."""
    with torch.no_grad():
        for index, (name, parameter) in enumerate(module.named_parameters()):
            value = noise(1000 * seed + index, *parameter.shape, scale=scale)
            parameter.copy_(1 + value if name.endswith("norm.weight") else value)


def slot_map(convention: str) -> SlotMap:
    return SlotMap(SlotConvention(convention), BLOCK)


def model_dims(convention: str) -> ModelDims:
    return ModelDims(HIDDEN, VOCAB, VOCAB, slot_map(convention))


@dataclass(frozen=True)
class World:
    """A target's frozen matrices and a packed batch of one dtype.

    raw_hidden [S, H] is the target's last state before its final norm of weight `final_norm`;
    batch.last_hidden is the state after it.
    """

    embedding: Tensor
    lm_head: Tensor
    final_norm: Tensor
    raw_hidden: Tensor
    batch: TrainBatch

    @property
    def features(self) -> Tensor:
        assert self.batch.features is not None
        return self.batch.features

    @property
    def last_hidden(self) -> Tensor:
        assert self.batch.last_hidden is not None
        return self.batch.last_hidden


def make_world(
    dtype: torch.dtype,
    mask_gaps: tuple[int, ...] = (),
    documents: tuple[tuple[int, int], ...] = DOCUMENTS,
    anchors: tuple[int, ...] = ANCHORS,
) -> World:
    """mask_gaps: positions inside responses that were not generated, so that a label mask shows."""
    lengths = torch.tensor([prompt + response for prompt, response in documents])
    total = int(lengths.sum())
    generated = [[False] * prompt + [True] * rest for prompt, rest in documents]
    loss_mask = torch.tensor([flag for flags in generated for flag in flags])
    loss_mask[list(mask_gaps)] = False
    raw, norm = noise(3, total, HIDDEN).to(dtype), (1 + noise(4, HIDDEN, scale=0.3)).to(dtype)
    batch = TrainBatch(
        step=0,
        input_ids=torch.randint(4, VOCAB, (total,), generator=torch.Generator().manual_seed(5)),
        document_ids=torch.arange(len(documents)).repeat_interleave(lengths),
        position_ids=torch.cat([torch.arange(int(length)) for length in lengths]),
        loss_mask=loss_mask,
        anchors=torch.tensor(anchors),
        features=noise(6, total, NUM_FEATURES * HIDDEN).to(dtype),
        last_hidden=torch.nn.functional.rms_norm(raw, (HIDDEN,), norm, 1e-6),
    )
    embedding, lm_head = noise(1, VOCAB, HIDDEN), noise(2, VOCAB, HIDDEN, scale=0.4)
    return World(embedding.to(dtype), lm_head.to(dtype), norm, raw, batch)


def make_drafter(convention: str, world: World) -> DFlashDrafter:
    """Our drafter, random, in the world's dtype."""
    powers = torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM
    drafter = DFlashDrafter(
        model_dims(convention),
        feature_size=NUM_FEATURES * HIDDEN,
        token_embedding=world.embedding,
        rope_inv_freq=1.0 / THETA**powers,
        rope_scale=1.0,
        num_layers=LAYERS,
        intermediate_size=INTERMEDIATE,
        num_heads=NUM_HEADS,
        num_kv_heads=NUM_KV_HEADS,
        head_dim=HEAD_DIM,
        mask_token_id=MASK_ID,
    )
    drafter.to(world.embedding.dtype)
    randomize(drafter, seed=1)
    return drafter


def make_head(name: str, convention: str, world: World) -> CorrectionHead:
    """Our head, random, with the options of the speculators package."""
    dims, dtype = model_dims(convention), world.embedding.dtype
    if name == "none":
        return NoHead(dims, world.embedding).to(dtype)
    head: CorrectionHead
    if name == "xpress":
        head = XPressHead(
            dims, world.embedding, RANK, mix="inclusive", mlp="swiglu", anchor_prev="predecessor"
        )
    else:
        head = MarkovHead(
            dims,
            world.embedding,
            RANK,
            variant=name,  # type: ignore[arg-type]
            rnn_anchor_slot="read",
        )
    head.to(dtype)
    randomize(head, seed=2)
    return head


def run_blocks(drafter: DFlashDrafter, batch: TrainBatch) -> Tensor:
    """Our training pass: hidden states [n, P, H] of all blocks of a packed batch."""
    return drafter(
        batch.features,
        batch.position_ids,
        batch.input_ids[batch.anchors],
        batch.position_ids[batch.anchors],
        block_mask(batch.anchors, batch.document_ids, drafter.slots.block_size),
    )


def leaves(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters())
