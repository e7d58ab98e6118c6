"""Any checkpoint folder, or run directory, as one `Content`; everything in it is accounted for."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xpress_exp.export.content import Content, TargetFacts, told_facts
from xpress_exp.export.deepspec import DEEPSPEC
from xpress_exp.export.domino import DOMINO
from xpress_exp.export.hf import ARCHITECTURE, HF, RUN, VOCAB_IDS
from xpress_exp.export.layout import SHARED, Layout
from xpress_exp.export.skeleton import expected_shapes
from xpress_exp.export.speculators import SPECULATORS, take_vocabulary
from xpress_exp.export.training_pickle import read_training_pickle
from xpress_exp.export.vllm_xpress import VLLM_XPRESS
from xpress_exp.export.weights import read_tensors
from xpress_exp.export.zlab import ZLAB
from xpress_exp.run_dir import ArtefactError, read_json, sha256_file
from xpress_exp.schema import recorded_sha256, weights_file

log = logging.getLogger(__name__)
LAYOUTS = {item.name: item for item in (HF, ZLAB, DEEPSPEC, DOMINO, SPECULATORS, VLLM_XPRESS)}
CLASSES = {
    ARCHITECTURE: HF,
    "Qwen3DSparkModel": DEEPSPEC,
    "DSparkDraftModel": DEEPSPEC,
    "DominoDraftModel": DOMINO,
    "Qwen3XPressModel": VLLM_XPRESS,
    "Qwen3XPressForCausalLM": VLLM_XPRESS,
}
# A dFlash class names its head, if any, by projector_type.
PROJECTORS = {None: ZLAB, "domino": DOMINO, "dspark": DEEPSPEC}
SIZES = ("hidden_size", "vocab_size", "num_layers")
# A strict mixer reads as an inclusive one with a zero diagonal; the others have no field of theirs.
FREE = ("draft_vocab", "mix", "anchor_prev")
# Some Domino checkpoints put the head below this name.
OLD_DOMINO_PREFIX = "logit_head."


def read_folder(folder: Path) -> Content:
    """What a checkpoint folder or run directory holds, weights included.

    Raises ArtefactError for damage, for a config.json that contradicts itself or the weights, and
    for tensors that are missing or unknown; ValueError for a folder that is no checkpoint.
    """
    file = weights_file(folder)
    if not file.is_file():
        raise ValueError(
            f"{folder} has no model.safetensors; give a run directory, a checkpoint folder, "
            "'released' or 'scratch'"
        )
    recorded = recorded_sha256(folder)
    if recorded is not None and sha256_file(file) != recorded:
        raise ArtefactError(f"{file} does not have the hash recorded beside it; restore or retrain")
    config_file = folder / "config.json"
    config = read_json(config_file)
    try:
        layout = layout_of(config, config_file)
        content = _with_record(layout.read(config, config_file), config, config_file)
        if file.suffix == ".pt":
            content, layout, tensors = read_training_pickle(content, file)
        else:
            tensors = read_tensors(file)
        return _with_tensors(content, layout, config, tensors, file)
    except (ArtefactError, ValueError):
        raise
    except Exception as error:  # a field of another kind, or a size that no layer can have
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ArtefactError(f"{config_file} does not describe a drafter ({reason})") from error


def layout_of(config: Mapping[str, Any], file: Path) -> Layout:
    """The layout that config.json announces; raises ValueError when it is none of ours."""
    if "speculators_model_type" in config:
        return SPECULATORS
    if "drafter" in config:
        return RUN
    [architecture, *_] = config.get("architectures") or [None]
    if architecture == "DFlashDraftModel":
        projector = (config.get("dflash_config") or {}).get("projector_type")
        if projector not in PROJECTORS:
            raise ValueError(f"{file}: projector_type={projector} is not supported")
        return PROJECTORS[projector]
    if architecture not in CLASSES:
        raise ValueError(f"{file} does not describe a drafter (architectures: {architecture})")
    return CLASSES[architecture]


def _with_record(content: Content, config: Mapping[str, Any], file: Path) -> Content:
    """Adds what our own exporter noted under 'xpress_exp'; raises ArtefactError where the two
    parts disagree."""
    record = config.get("xpress_exp")
    if record is None:
        return content
    for part, told in (
        ("drafter", content.drafter),
        ("head", content.head),
        ("target_facts", {key: getattr(content.target, key) for key in SIZES}),
    ):
        noted = record.get(part, {})
        for key, value in told.items():
            if value is not None and key not in FREE and noted.get(key, value) != value:
                raise ArtefactError(
                    f"{file}: {key}={value}, but xpress_exp.{part}.{key}={noted[key]}; one of "
                    "them was changed"
                )
    passes = record.get("num_passes")
    if passes is not None and (type(passes) is not int or passes < 0):
        raise ArtefactError(f"{file}: xpress_exp.num_passes={passes} must be a whole number >= 0")
    head = dict(content.head)
    if "anchor_prev" in record.get("head", {}):
        head["anchor_prev"] = record["head"]["anchor_prev"]
    return replace(
        content,
        head=head,
        target=_noted_target(content.target, record, file),
        num_passes=content.num_passes or passes,
    )


def _noted_target(target: TargetFacts, record: Mapping[str, Any], file: Path) -> TargetFacts:
    """config.json's own words first; the record fills what they leave open."""
    noted = told_facts({"name": record.get("target"), **record.get("target_facts", {})}, file)
    return replace(target, **{k: v for k, v in noted.items() if not getattr(target, k)})


def _with_tensors(
    content: Content,
    layout: Layout,
    config: Mapping[str, Any],
    tensors: dict[str, Tensor],
    file: Path,
) -> Content:
    """Moves tensors to our names after every one of them was found right."""
    if layout is SPECULATORS:
        content = take_vocabulary(content, config, tensors, file)
    if layout is HF and VOCAB_IDS in tensors:
        content = replace(content, vocab_ids=tensors.pop(VOCAB_IDS))
    _check_vocabulary(content, file)
    if layout is DOMINO:
        tensors = {name.removeprefix(OLD_DOMINO_PREFIX): t for name, t in tensors.items()}
    shared = {name: tensors.pop(name) for name in SHARED if name in tensors}
    left_out = [name for name in layout.left_out if tensors.pop(name, None) is not None]
    if left_out:
        log.warning("%s: %s is left out; no draft depends on it", file, " and ".join(left_out))
    if not content.head:
        # A run of which only the drafter is known: the head's tensors are not asked for.
        kept = {name: t for name, t in tensors.items() if name.startswith("drafter.")}
        return replace(content, tensors=kept)
    if content.target.hidden_size is None or content.target.vocab_size is None:
        return replace(content, tensors=tensors)
    wanted = expected_shapes(content)
    names = {layout.name_in_file(name, content.head): name for name in wanted}
    _check_names(set(tensors), set(names), file)
    for name, ours in names.items():
        if tensors[name].shape != wanted[ours]:
            raise ArtefactError(
                f"{file}: {name} has shape {list(tensors[name].shape)}, but config.json describes "
                f"{list(wanted[ours])}"
            )
    moved = {ours: tensors[name] for name, ours in names.items()}
    return replace(content, tensors=moved, shared=shared)


def _check_vocabulary(content: Content, file: Path) -> None:
    """Raise ArtefactError for a reduced vocabulary that lists no ascending ids of the target."""
    ids, size = content.vocab_ids, content.target.vocab_size
    if ids is None:
        return
    is_list = ids.ndim == 1 and ids.dtype == torch.int64 and len(ids) > 0
    if not is_list or ids[0] < 0 or not bool((ids.diff() > 0).all()):
        raise ArtefactError(f"{file}: the draft vocabulary must list distinct ascending token ids")
    if size is not None and ids[-1] >= size:
        raise ArtefactError(
            f"{file}: the draft vocabulary holds id {int(ids[-1])}, but vocab_size is {size}"
        )


def _check_names(found: set[str], wanted: set[str], file: Path) -> None:
    """Raise ArtefactError naming the tensors that are missing or unknown."""
    missing, unknown = sorted(wanted - found), sorted(found - wanted)
    told = [
        f"{what} {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        for what, names in (("lacks", missing), ("has the unknown", unknown))
        if names
    ]
    if told:
        raise ArtefactError(f"{file} {' and '.join(told)}, by what config.json describes")
