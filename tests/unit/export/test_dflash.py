"""The dFlash folder: published names, float16, both rope places, and a way back through
`drafter.init`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from xpress_exp.builders import DraftModel
from xpress_exp.export import write_dflash
from xpress_exp.run_dir import read_json, sha256_file
from xpress_exp.target import TinyTarget

DRAFTER = {
    "mask_token_id": 3,
    "target_layer_ids": [0, 1],
    "block_size": 4,
    "num_layers": 2,
    "intermediate_size": 40,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "slot_convention": "fill_in",
}
TARGET = {
    "name": "tiny",
    "num_layers": 3,
    "hidden_size": 32,
    "vocab_size": 64,
    "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
}


@pytest.fixture
def model(
    make_target: Callable[..., TinyTarget], make_model: Callable[..., DraftModel]
) -> DraftModel:
    return make_model(make_target(), randomize=0.3)


def write(model: DraftModel, folder: Path) -> dict[str, Any]:
    write_dflash(folder, model.drafter.state_dict(), DRAFTER, TARGET, {"commit": "abc"})
    return read_json(folder / "config.json")


def test_the_folder_has_the_published_names_in_half_precision(
    model: DraftModel, tmp_path: Path
) -> None:
    config = write(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    layer = [
        *(f"self_attn.{name}_proj.weight" for name in "qkvo"),
        *(f"self_attn.{name}_norm.weight" for name in "qk"),
        *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
    ]
    names = {f"layers.{index}.{name}" for index in range(2) for name in layer}
    assert set(tensors) == names | {"fc.weight", "hidden_norm.weight", "norm.weight"}
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}
    state = model.drafter.state_dict()
    assert all(torch.equal(tensor, state[name].half()) for name, tensor in tensors.items())
    # 1e4 in either place would draft with the wrong positions, silently.
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 5e5
    assert config["block_size"] == 4
    assert config["dflash_config"] == {"mask_token_id": 3, "target_layer_ids": [0, 1]}


def test_the_recorded_hash_is_that_of_the_file(model: DraftModel, tmp_path: Path) -> None:
    config = write(model, tmp_path)
    digest = sha256_file(tmp_path / "model.safetensors")
    assert config["xpress_exp"]["sha256"] == digest
    assert read_json(tmp_path / "provenance.json") == {"commit": "abc", "model_sha256": digest}


def test_weights_beyond_half_precision_are_refused(model: DraftModel, tmp_path: Path) -> None:
    state = {**model.drafter.state_dict(), "fc.weight": torch.full((2, 2), 1e6)}
    with pytest.raises(ValueError, match=r"fc\.weight does not fit float16"):
        write_dflash(tmp_path, state, DRAFTER, TARGET, {})
    assert not (tmp_path / "model.safetensors").exists()
