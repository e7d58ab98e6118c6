"""Drafter weights from a run directory, an exported folder or a published dFlash checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from xpress_exp.run_dir import ArtefactError, read_json, sha256_file

# A drafter's weights mean something else when one of these differs.
ARCHITECTURE_KEYS = (
    "num_layers",
    "intermediate_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "slot_convention",
    "target_layer_ids",
    "mask_token_id",
)


def read_drafter(
    folder: Path, recorded_sha256: str | None, wanted: Mapping[str, Any], target: str
) -> dict[str, Tensor]:
    """State of the drafter in `folder`, names without prefix.

    recorded_sha256: hash written beside the weights, None for a published checkpoint without one.
    wanted: the drafter group; target: name of the target group. Raises ValueError when the folder
    holds another architecture or a drafter of another target, ArtefactError when it is damaged.
    """
    file = folder / "model.safetensors"
    if not file.exists():
        raise ValueError(
            f"drafter.init={folder} has no model.safetensors; give a run directory, a checkpoint "
            "folder, 'released' or 'scratch'"
        )
    if recorded_sha256 is not None and sha256_file(file) != recorded_sha256:
        raise ArtefactError(f"{file} does not have the hash recorded beside it; restore or retrain")
    stored, trained_for = _description(folder)
    if trained_for is not None and trained_for != target:
        raise ValueError(
            f"drafter.init={folder} was trained for target={trained_for}, not {target}; "
            "choose that target, or drafter.init=scratch"
        )
    for key in ARCHITECTURE_KEYS:
        if stored[key] != wanted[key]:
            raise ValueError(
                f"drafter.{key}={wanted[key]}, but the drafter of drafter.init={folder} has "
                f"{stored[key]}; set drafter.{key}={json.dumps(stored[key])}, or init=scratch"
            )
    tensors = read_tensors(file)
    prefix = "drafter."
    if any(name.startswith(prefix) for name in tensors):
        return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    return tensors


def _description(folder: Path) -> tuple[dict[str, Any], str | None]:
    """Architecture of the stored drafter and its target's name (None when it is not told)."""
    config = read_json(folder / "config.json")
    if "xpress_exp" in config:
        return config["xpress_exp"]["drafter"], config["xpress_exp"]["target"]
    if "drafter" in config:
        return config["drafter"], config.get("target", {}).get("name")
    if "DFlashDraftModel" not in config.get("architectures", []):
        raise ValueError(
            f"drafter.init={folder}: {folder / 'config.json'} does not describe a drafter"
        )
    special = config.get("dflash_config", {})
    described = {
        "num_layers": config["num_hidden_layers"],
        "intermediate_size": config["intermediate_size"],
        "num_heads": config["num_attention_heads"],
        "num_kv_heads": config["num_key_value_heads"],
        "head_dim": config["head_dim"],
        "slot_convention": "fill_in",
        "target_layer_ids": special.get("target_layer_ids"),
        "mask_token_id": special.get("mask_token_id"),
    }
    return described, None


def read_tensors(file: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file; raises ArtefactError naming it when it is unreadable."""
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise ArtefactError(f"{file} cannot be read ({error}); delete it and rerun") from error
