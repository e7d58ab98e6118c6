"""Any checkpoint folder, or run directory, as one `Content`; everything in it is accounted for."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from xpress_exp.export.content import Content, TargetFacts
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
    layout = layout_of(config, config_file)
    try:
        content = _with_record(layout.read(config, config_file), config, config_file)
        if file.suffix == ".pt":
            content, layout, tensors = read_training_pickle(content, file)
        else:
            tensors = read_tensors(file)
        return _with_tensors(content, layout, config, tensors, file)
    except (KeyError, TypeError) as error:
        raise ArtefactError(f"{config_file} does not describe a drafter ({error})") from error


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
    head = dict(content.head)
    if "anchor_prev" in record.get("head", {}):
        head["anchor_prev"] = record["head"]["anchor_prev"]
    return replace(
        content,
        head=head,
        target=_noted_target(content.target, record),
        num_passes=content.num_passes or record.get("num_passes"),
    )


def _noted_target(target: TargetFacts, record: Mapping[str, Any]) -> TargetFacts:
    """config.json's own words first; the record fills what they leave open."""
    noted = record.get("target_facts", {})
    known = {item.name for item in dataclass_fields(TargetFacts)}
    missing = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in {"name": record.get("target"), **noted}.items()
        if key in known and not getattr(target, key)
    }
    return replace(target, **missing)


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
