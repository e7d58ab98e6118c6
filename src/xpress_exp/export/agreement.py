"""Whether a checkpoint belongs to a target, and to the drafter that a configuration asks for."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xpress_exp.export.content import Content, TargetFacts, target_facts
from xpress_exp.run_dir import ArtefactError
from xpress_exp.target import TargetModel

log = logging.getLogger(__name__)
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
    describes, or was trained for another option of the target group than `target`. A probe of the
    target's weights knows better than that label (one model may be an option of its own, and hf by
    its path): `check_target` asks it. Another block size is legal, and told."""
    trained_for = content.target.name
    if content.target.probe is None and trained_for not in (None, target):
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
    size, own = wanted["block_size"], content.drafter["block_size"]
    if size != own:
        log.warning(
            "drafter.block_size=%s, but the drafter of drafter.init=%s was trained with %s: a "
            "comparison of block sizes favours %s; compare them with init=scratch, or an initial "
            "drafter for each",
            size,
            folder,
            own,
            own,
        )


def check_target(content: Content, folder: Path, target: TargetModel) -> None:
    """Raise ArtefactError naming the first fact in which `target` is not the one of the folder:
    sizes, rotary embedding, tokenizer, weights. What the folder does not tell is not compared.

    Another chat template, and another name where nothing tells the weights, are warnings: both may
    be right (a mended template, a moved folder), no output is wrong by them, and only tau can
    suffer."""
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
    _warn_of_doubts(content.target, own, folder, target)


def _warn_of_doubts(told: TargetFacts, own: TargetFacts, folder: Path, target: TargetModel) -> None:
    templates = (told.chat_template_sha256, own.chat_template_sha256)
    if None not in templates and templates[0] != templates[1]:
        log.warning(
            "%s was trained on text of another chat template (%s) than the target has now (%s); "
            "tau may be lower than it was",
            folder,
            *map(_short, templates),
        )
    names = (told.name_or_path, target.identity.get("source"))
    if told.probe is None and None not in names and names[0] != names[1]:
        log.warning(
            "%s was trained for target.name_or_path=%s and is used with %s; nothing stored there "
            "tells whether they are the same model",
            folder,
            *names,
        )


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
