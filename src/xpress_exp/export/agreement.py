"""Whether a checkpoint belongs to a target, and to the drafter that a configuration asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xpress_exp.export.content import Content, target_facts
from xpress_exp.run_dir import ArtefactError
from xpress_exp.target import TargetModel

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
# Half precision keeps 8 bits of a value.
PROBE_TOLERANCE = 0.02


def check_wanted(content: Content, folder: Path, wanted: Mapping[str, Any], target: str) -> None:
    """Raise ValueError when the folder's drafter is not the one that the drafter group `wanted`
    describes, or was trained for another option of the target group than `target`."""
    trained_for = content.target.name
    if trained_for is not None and trained_for != target:
        raise ValueError(
            f"drafter.init={folder} was trained for target={trained_for}, not {target}; "
            "choose that target, or drafter.init=scratch"
        )
    for key in ARCHITECTURE_KEYS:
        stored = content.drafter[key]
        if stored != wanted[key]:
            raise ValueError(
                f"drafter.{key}={wanted[key]}, but the drafter of drafter.init={folder} has "
                f"{stored}; set drafter.{key}={json.dumps(stored)}, or init=scratch"
            )


def check_target(content: Content, folder: Path, target: TargetModel) -> None:
    """Raise ArtefactError naming the first fact in which `target` is not the one of the folder:
    sizes, rotary embedding, tokenizer, weights. What the folder does not tell is not compared."""
    own = target_facts(target)
    told = content.target
    pairs: list[tuple[str, Any, Any]] = [
        ("hidden_size", told.hidden_size, own.hidden_size),
        ("vocab_size", told.vocab_size, own.vocab_size),
        ("num_layers", told.num_layers, own.num_layers),
        ("rope_theta", told.rope.get("rope_theta"), own.rope.get("rope_theta")),
        ("tokenizer", told.tokenizer_sha256, own.tokenizer_sha256),
    ]
    for name, trained, found in pairs:
        if None not in (trained, found) and trained != found:
            raise ArtefactError(
                f"{folder} was trained for a target with {name} {_short(trained)}, not "
                f"{_short(found)}; give the target it belongs to"
            )
    if told.probe is not None and not _alike(torch.tensor(told.probe), torch.tensor(own.probe)):
        raise ArtefactError(
            f"{folder} was trained for a target with other weights than {target.name} has "
            "(its embedding differs); give the target it belongs to"
        )
    _check_copies(content, folder, target)


def _check_copies(content: Content, folder: Path, target: TargetModel) -> None:
    """Copies of the target's matrices beside the weights must be the target's."""
    rows = target.lm_head if content.vocab_ids is None else target.lm_head[content.vocab_ids]
    for name, own in (("embed_tokens.weight", target.embedding), ("lm_head.weight", rows)):
        copy = content.shared.get(name)
        if copy is None:
            continue
        if copy.shape != own.shape or not _alike(copy.float(), own.cpu().float()):
            raise ArtefactError(
                f"{folder}: {name} is not the target's; it belongs to another target, or was "
                "trained, which is not supported"
            )


def _alike(first: Tensor, second: Tensor) -> bool:
    return bool(((first - second).abs().max() <= PROBE_TOLERANCE * second.abs().max()).item())


def _short(value: Any) -> str:
    return value[:10] if isinstance(value, str) else str(value)
