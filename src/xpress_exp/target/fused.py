"""A second way through the target's decoder layers, made for decoding.

The same weights as the Transformers model, which stays the reference and serves every other case:
one product for q, k, v and one for gate and up, layouts fast for few rows, a preallocated cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from xpress_exp.few_rows import FewRows, LayoutChoice
from xpress_exp.kv_cache import FixedRoom, KVCache, Room
from xpress_exp.rotary import Rotary, rotate

# model_type of the configurations whose layers are the ones below.
FAMILIES = ("llama", "qwen3")


def unfit(config: Any) -> str:
    """Why a model of this configuration must decode through Transformers; empty if it need not."""
    if config.model_type not in FAMILIES:
        return f"model_type={config.model_type} is none of {', '.join(FAMILIES)}"
    rope = getattr(config, "rope_parameters", None) or {}
    for field, wanted, found in (
        ("hidden_act", ("silu",), config.hidden_act),
        ("attention_bias", (False,), getattr(config, "attention_bias", False)),
        ("mlp_bias", (False,), getattr(config, "mlp_bias", False)),
        ("use_sliding_window", (False,), getattr(config, "use_sliding_window", False)),
        # The others change their frequencies with the length of the text.
        ("rope_type", ("default", "linear", "llama3"), rope.get("rope_type", "default")),
    ):
        if found not in wanted:
            return f"{field}={found}"
    return ""


@dataclass(frozen=True)
class _Layer:
    """Weights of one layer; q_norm and k_norm are None for a family without them."""

    qkv: FewRows
    out: FewRows
    gate_up: FewRows
    down: FewRows
    before: Tensor
    between: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None


class FusedDecoder:
    """Decoder layers and final norm of a Transformers model of FAMILIES, for inference.

    Holds a second copy of the linear weights in the layouts that `choice` names. Raises ValueError
    when the configuration is unfit.
    """

    def __init__(self, decoder: Any, config: Any, choice: LayoutChoice) -> None:
        reason = unfit(config)
        if reason:
            raise ValueError(f"decode.kernels=fast does not fit {reason}; use decode.kernels=plain")
        self.num_kv_heads: int = config.num_key_value_heads
        self.num_heads: int = config.num_attention_heads
        self.head_dim: int = decoder.layers[0].self_attn.head_dim
        self.eps: float = config.rms_norm_eps
        self.embedding: Tensor = decoder.embed_tokens.weight.detach()
        self.norm: Tensor = decoder.norm.weight.detach()
        rotary = decoder.rotary_emb
        self.rotary = Rotary(rotary.inv_freq, float(getattr(rotary, "attention_scaling", 1.0)))
        self.layers = _layers(decoder.layers, choice)

    def new_cache(self, batch: int = 1) -> KVCache:
        """An empty cache for `batch` sequences."""
        return KVCache(len(self.layers), batch, self.num_kv_heads, self.head_dim, self.embedding)

    def __call__(
        self, input_ids: Tensor, cache: KVCache, layer_ids: Sequence[int]
    ) -> tuple[Tensor, list[Tensor]]:
        """Run input_ids int64 [b, q] behind the cached tokens and cache them.

        Returns the final-norm output [b, q, H] and the outputs of `layer_ids`, each [b, q, H].
        """
        outcome = self.run(input_ids, cache.reserve(input_ids.shape[1]), layer_ids)
        cache.advance(input_ids.shape[1])
        return outcome

    def run(
        self, input_ids: Tensor, room: Room | FixedRoom, layer_ids: Sequence[int]
    ) -> tuple[Tensor, list[Tensor]]:
        """The pass itself, free of bookkeeping: with a `FixedRoom` it is one graph."""
        mask = room.causal_mask()
        states = functional.embedding(input_ids, self.embedding)
        cos, sin = self.rotary(room.positions, states.dtype)
        captured: dict[int, Tensor] = {}
        for index, layer in enumerate(self.layers):
            states = self._layer(index, layer, states, room, mask, (cos, sin))
            if index in layer_ids:
                captured[index] = states
        return self._normed(states, self.norm), [captured[index] for index in layer_ids]

    def _layer(
        self,
        index: int,
        layer: _Layer,
        states: Tensor,
        room: Room | FixedRoom,
        mask: Tensor | None,
        turn: tuple[Tensor, Tensor],
    ) -> Tensor:
        joint = layer.qkv(self._normed(states, layer.before)).unflatten(-1, (-1, self.head_dim))
        heads = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        query, key, value = joint.split(heads, 2)
        if layer.q_norm is not None and layer.k_norm is not None:
            query, key = self._normed(query, layer.q_norm), self._normed(key, layer.k_norm)
        query, key = (rotate(part.transpose(1, 2), *turn) for part in (query, key))
        keys, values = room.write(index, key, value.transpose(1, 2))
        mixed = functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, enable_gqa=self.num_heads != self.num_kv_heads
        )
        states = states + layer.out(mixed.transpose(1, 2).flatten(2))
        gate, up = layer.gate_up(self._normed(states, layer.between)).chunk(2, -1)
        return states + layer.down(functional.silu(gate) * up)

    def _normed(self, states: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(states, weight.shape, weight, self.eps)


def _layers(layers: Any, choice: LayoutChoice) -> list[_Layer]:
    attentions = [layer.self_attn for layer in layers]
    groups = {
        "qkv": [_joined(x.q_proj, x.k_proj, x.v_proj) for x in attentions],
        "out": [_joined(x.o_proj) for x in attentions],
        "gate_up": [_joined(x.mlp.gate_proj, x.mlp.up_proj) for x in layers],
        "down": [_joined(x.mlp.down_proj) for x in layers],
    }
    layouts = {name: choice(weights) for name, weights in groups.items()}
    return [
        _Layer(
            **{name: FewRows(groups[name][index], layouts[name]) for name in groups},
            before=layer.input_layernorm.weight.detach(),
            between=layer.post_attention_layernorm.weight.detach(),
            q_norm=_norm(layer.self_attn, "q_norm"),
            k_norm=_norm(layer.self_attn, "k_norm"),
        )
        for index, layer in enumerate(layers)
    ]


def _joined(*linears: nn.Linear) -> Tensor:
    weights = [linear.weight.detach() for linear in linears]
    return weights[0] if len(weights) == 1 else torch.cat(weights)


def _norm(attention: Any, name: str) -> Tensor | None:
    module = getattr(attention, name, None)
    return None if module is None else module.weight.detach()
