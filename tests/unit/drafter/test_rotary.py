"""The drafter turns by exactly the target's rotary embedding, whatever its configuration."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from xpress_exp.rotary import Rotary, rotate
from xpress_exp.target import TargetModel
from xpress_exp.target.tiny import ByteTokenizer

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}


def target_with(family: str, rope: dict[str, Any]) -> TargetModel:
    kinds: Any = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    }
    make_config, make_model = kinds[family]
    config = make_config(
        hidden_size=16,
        vocab_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        intermediate_size=16,
        max_position_embeddings=128,
        rope_parameters=dict(rope),
    )
    return TargetModel(make_model(config), ByteTokenizer(12, 2), family, (0,), {})


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize(
    "rope",
    [{"rope_type": "default", "rope_theta": 1e6}, LLAMA3, YARN],
    ids=["default", "llama3", "yarn"],
)
def test_equals_transformers(family: str, rope: dict[str, Any]) -> None:
    target = target_with(family, rope)
    torch.manual_seed(0)
    queries, keys = torch.randn(1, 2, 9, 8), torch.randn(1, 1, 9, 8)
    positions = torch.tensor([[0, 1, 2, 7, 8, 30, 31, 64, 100]])
    reference_cos, reference_sin = target._decoder.rotary_emb(queries, positions)
    expected = apply_rotary_pos_emb(queries, keys, reference_cos, reference_sin)
    cos, sin = Rotary(target.rope_inv_freq, target.rope_scale)(positions, torch.float32)
    torch.testing.assert_close(rotate(queries, cos, sin), expected[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(rotate(keys, cos, sin), expected[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("theta", [1e4, 1e5, 1e6])
def test_theta_is_read_from_rope_parameters(theta: float) -> None:
    target = target_with("llama", {"rope_type": "default", "rope_theta": theta})
    expected = torch.tensor([theta ** (-2 * index / 8) for index in range(4)])
    torch.testing.assert_close(target.rope_inv_freq, expected)
    assert target.rope_scale == 1.0


def test_yarn_scale_is_not_lost() -> None:
    assert target_with("llama", YARN).rope_scale == pytest.approx(0.1 * torch.tensor(4.0).log() + 1)
