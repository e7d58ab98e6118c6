"""The published dFlash checkpoint layout: bare parameter names, a Qwen3-style config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from xpress_exp.run_dir import atomic_path, sha256_file, write_json


def write_dflash(
    folder: Path,
    tensors: Mapping[str, Tensor],
    drafter: Mapping[str, Any],
    target: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> str:
    """Write model.safetensors (float16) and config.json; returns the weights' SHA-256.

    tensors: state of the drafter alone; drafter: its config group; target: hidden_size, vocab_size,
    num_layers, rope_parameters and name; facts: provenance stored beside them. Engines read the
    first part of the config, `drafter.init` the part under 'xpress_exp'. Raises ValueError for a
    drafter that the layout cannot describe or weights beyond float16.
    """
    if drafter["slot_convention"] != "fill_in" or drafter["mask_token_id"] is None:
        raise ValueError(
            f"drafter.slot_convention={drafter['slot_convention']} with drafter.mask_token_id="
            f"{drafter['mask_token_id']} has no place in the dFlash layout; export needs fill_in "
            "and a reserved mask token"
        )
    file = folder / "model.safetensors"
    half = {name: tensor.to("cpu", torch.float16).contiguous() for name, tensor in tensors.items()}
    for name, tensor in half.items():
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} does not fit float16; train with a smaller optim.lr")
    with atomic_path(file) as temporary:
        save_file(half, temporary, metadata={"format": "pt"})
    digest = sha256_file(file)
    write_json(folder / "config.json", _config(drafter, target, digest))
    write_json(folder / "provenance.json", {**facts, "model_sha256": digest})
    return digest


def _config(drafter: Mapping[str, Any], target: Mapping[str, Any], digest: str) -> dict[str, Any]:
    """Keys of the published checkpoints, and our own under 'xpress_exp'."""
    special = {
        "mask_token_id": drafter["mask_token_id"],
        "target_layer_ids": drafter["target_layer_ids"],
    }
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": drafter["block_size"],
        "dflash_config": special,
        "num_target_layers": target["num_layers"],
        "hidden_size": target["hidden_size"],
        "vocab_size": target["vocab_size"],
        "intermediate_size": drafter["intermediate_size"],
        "num_hidden_layers": drafter["num_layers"],
        "num_attention_heads": drafter["num_heads"],
        "num_key_value_heads": drafter["num_kv_heads"],
        "head_dim": drafter["head_dim"],
        "layer_types": ["full_attention"] * drafter["num_layers"],
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "tie_word_embeddings": True,
        # Both places: engines read one or the other, and the default would be wrong silently.
        "rope_theta": target["rope_parameters"]["rope_theta"],
        "rope_parameters": target["rope_parameters"],
        "torch_dtype": "float16",
        "xpress_exp": {"drafter": dict(drafter), "target": target["name"], "sha256": digest},
    }
