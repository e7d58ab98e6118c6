"""dFlash: a block-diffusion drafter that reads the target's hidden states as injected K/V.

Architecture and parameter names follow arXiv 2602.06036 and its released checkpoints: Qwen3-style
layers for every target (q/k-norm, SwiGLU, no biases), the target's rotary embedding, its frozen
token embedding and LM head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from xpress_exp.drafter.block_mask import BlockGroup, attend
from xpress_exp.kv_cache import FixedRoom, KeyValue, KVCache, Room
from xpress_exp.rotary import Rotary, rotate
from xpress_exp.types import ModelDims, SlotMap

# Given the block's keys and values, those of context and block.
Join = Callable[[Tensor, Tensor], KeyValue]
Mask = Tensor | tuple[BlockGroup, ...] | None


def _behind(context: KeyValue, key: Tensor, value: Tensor) -> KeyValue:
    return torch.cat([context[0], key], 2), torch.cat([context[1], value], 2)


class Attention(nn.Module):
    """Block queries over context and block keys; the same k/v projections serve both."""

    def __init__(
        self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int, eps: float
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(head_dim, eps)
        self.k_norm = nn.RMSNorm(head_dim, eps)

    def _heads(self, states: Tensor) -> Tensor:
        return states.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def key_value(self, states: Tensor, cos: Tensor, sin: Tensor) -> KeyValue:
        """Keys (normed, rotated) and values of states [b, t, H]."""
        key = self.k_norm(self.k_proj(states).unflatten(-1, (-1, self.head_dim))).transpose(1, 2)
        return rotate(key, cos, sin), self._heads(self.v_proj(states))

    def forward(self, block: Tensor, cos: Tensor, sin: Tensor, join: Join, mask: Mask) -> Tensor:
        query = self.q_norm(self.q_proj(block).unflatten(-1, (-1, self.head_dim))).transpose(1, 2)
        keys, values = join(*self.key_value(block, cos, sin))
        mixed = attend(rotate(query, cos, sin), keys, values, mask)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)), no biases."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(states)) * self.up_proj(states))


class DraftLayer(nn.Module):
    """One pre-norm layer over the block; the context is not transformed, only re-projected."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        eps: float,
    ) -> None:
        super().__init__()
        self.self_attn = Attention(hidden_size, num_heads, num_kv_heads, head_dim, eps)
        self.mlp = SwiGLU(hidden_size, intermediate_size)
        self.input_layernorm = nn.RMSNorm(hidden_size, eps)
        self.post_attention_layernorm = nn.RMSNorm(hidden_size, eps)

    def forward(self, block: Tensor, cos: Tensor, sin: Tensor, join: Join, mask: Mask) -> Tensor:
        block = block + self.self_attn(self.input_layernorm(block), cos, sin, join, mask)
        return block + self.mlp(self.post_attention_layernorm(block))


class DFlashDrafter(nn.Module):
    """Predicts hidden states of all P slots of a block in one bidirectional pass.

    token_embedding [V, H] is the target's, frozen and never saved. rope_inv_freq [head_dim/2] and
    rope_scale are the target's. mask_token_id None means a learned mask embedding. Raises
    ValueError when head_dim does not fit the target's rotary embedding.
    """

    token_embedding: Tensor

    def __init__(
        self,
        dims: ModelDims,
        feature_size: int,
        token_embedding: Tensor,
        rope_inv_freq: Tensor,
        rope_scale: float,
        num_layers: int,
        intermediate_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        mask_token_id: int | None,
        rms_norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        if 2 * len(rope_inv_freq) != head_dim:
            raise ValueError(
                f"drafter.head_dim={head_dim} does not fit the target's rotary embedding of "
                f"{2 * len(rope_inv_freq)} channels; set drafter.head_dim={2 * len(rope_inv_freq)}"
            )
        self.slots: SlotMap = dims.slots
        self.rotary = Rotary(rope_inv_freq, rope_scale)
        self.mask_token_id = mask_token_id
        self.register_buffer("token_embedding", token_embedding, persistent=False)
        size = dims.hidden_size
        self.fc = nn.Linear(feature_size, size, bias=False)
        self.hidden_norm = nn.RMSNorm(size, rms_norm_eps)
        self.norm = nn.RMSNorm(size, rms_norm_eps)
        self.layers = nn.ModuleList(
            DraftLayer(size, intermediate_size, num_heads, num_kv_heads, head_dim, rms_norm_eps)
            for _ in range(num_layers)
        )
        if mask_token_id is None:
            self.mask_embedding = nn.Parameter(token_embedding.mean(0).clone())
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)

    def _block_inputs(self, anchor: Tensor) -> Tensor:
        """Embeddings [n, P, H] of [anchor, MASK, ..., MASK] for anchor ids int64 [n]."""
        if self.mask_token_id is None:
            mask = self.mask_embedding
        else:
            mask = self.token_embedding[self.mask_token_id]
        masks = mask.expand(len(anchor), self.slots.block_size - 1, -1)
        block = torch.cat([self.token_embedding[anchor][:, None], masks], 1)
        return block.to(self.fc.weight.dtype)

    def context_kv(self, features: Tensor, positions: Tensor) -> list[KeyValue]:
        """Injected keys and values of every layer from features [b, t, F] at positions [b, t]."""
        fused = self.hidden_norm(self.fc(features.to(self.fc.weight.dtype)))
        cos, sin = self.rotary(positions, fused.dtype)
        return [layer.self_attn.key_value(fused, cos, sin) for layer in self.layers]  # type: ignore

    def _run(self, block: Tensor, positions: Tensor, joins: Sequence[Join], mask: Mask) -> Tensor:
        cos, sin = self.rotary(positions, block.dtype)
        for layer, join in zip(self.layers, joins, strict=True):
            block = layer(block, cos, sin, join, mask)
        return self.norm(block)

    def forward(
        self,
        features: Tensor,
        context_positions: Tensor,
        anchor_ids: Tensor,
        anchor_positions: Tensor,
        mask: Mask,
    ) -> Tensor:
        """Training: all blocks of a packed context in one pass.

        features [S, F], context_positions int64 [S], anchor_ids and anchor_positions int64 [n],
        mask of `block_groups`, or bool [n*P, S + n*P] of `block_mask` (the same, slower). Returns
        hidden states [n, P, H].
        """
        context = self.context_kv(features[None], context_positions[None])
        block = self._block_inputs(anchor_ids)
        offsets = torch.arange(self.slots.block_size, device=anchor_ids.device)
        positions = (anchor_positions[:, None] + offsets).reshape(1, -1)
        joins = [partial(_behind, key_value) for key_value in context]
        hidden = self._run(block.reshape(1, -1, block.shape[-1]), positions, joins, mask)
        return hidden.reshape(len(anchor_ids), self.slots.block_size, -1)

    def new_cache(self, batch: int = 1) -> KVCache:
        """An empty context for `batch` sequences."""
        first = self.layers[0].self_attn
        size = first.k_proj.out_features // first.head_dim  # type: ignore[operator]
        return KVCache(len(self.layers), batch, size, first.head_dim, self.fc.weight)  # type: ignore

    def extend(self, cache: KVCache, features: Tensor, counts: Sequence[int] | None = None) -> None:
        """Append the features [b, c, F] of newly verified tokens to the context; of row i only
        the first counts[i], when given."""
        room = cache.reserve(features.shape[1])
        for layer, (key, value) in enumerate(self.context_kv(features, room.positions)):
            room.write(layer, key, value)
        cache.advance(features.shape[1] if counts is None else counts)

    def draft(self, cache: KVCache, anchor: Tensor) -> Tensor:
        """Hidden states [b, P, H] of the block after the cached context; anchor ids int64 [b].

        The block's keys and values use the free places of the cache, which the next tokens of the
        context overwrite.
        """
        return self.draft_in(cache.reserve(self.slots.block_size), anchor)

    def draft_in(self, room: Room | FixedRoom, anchor: Tensor) -> Tensor:
        """`draft` in the given room behind the context; with a `FixedRoom` it is one graph."""
        joins = [partial(room.write, layer) for layer in range(len(self.layers))]
        return self._run(self._block_inputs(anchor), room.positions, joins, room.block_mask())
