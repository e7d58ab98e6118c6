"""Our own layout: the config groups and the state of the model as they are; any head."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xpress_exp.export.content import Content, TargetFacts, told_facts
from xpress_exp.export.layout import Layout, Names
from xpress_exp.run_dir import ArtefactError, read_json
from xpress_exp.schema import content_sha256

ARCHITECTURE = "XPressExpDraftModel"
VOCAB_IDS = "vocab_ids"
# What the target group of a run may tell.
GROUP_FACTS = ("name", "name_or_path", "hidden_size", "vocab_size", "num_layers")


class _SameNames(dict[str, str]):
    """Every parameter of a head stands under 'head.' and its own name."""

    def __missing__(self, key: str) -> str:
        return f"head.{key}"


def _names(_head: Mapping[str, Any]) -> Names:
    return _SameNames()


def _write(content: Content, dtype: str) -> dict[str, Any]:
    slots = content.slots
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "xpress_exp",
        "torch_dtype": dtype,
        "num_speculative_tokens": slots.num_draft_tokens,
        "rope_parameters": dict(content.target.rope),
        "rope_theta": content.target.rope.get("rope_theta"),
    }


def _read(config: Mapping[str, Any], file: Path) -> Content:
    """The record under 'xpress_exp' is all there is; it is merged by the caller."""
    record = config.get("xpress_exp", {})
    if not {"drafter", "head"} <= set(record):
        raise ArtefactError(f"{file} lacks xpress_exp.drafter or xpress_exp.head")
    return Content(record["drafter"], record["head"], TargetFacts())


def _extra(content: Content) -> dict[str, Tensor]:
    return {} if content.vocab_ids is None else {VOCAB_IDS: content.vocab_ids}


HF = Layout("hf", _write, _read, _names, _extra, prefix="drafter.")


def _read_run(config: Mapping[str, Any], file: Path) -> Content:
    """Head and target are absent where only the drafter is asked for. Training noted the target it
    ran with: the group may leave its sizes open, and names no weights."""
    group, mark = config.get("target", {}), file.parent / "train.done.json"
    known = {key: group.get(key) for key in GROUP_FACTS if group.get(key) is not None}
    noted = read_json(mark).get("target_facts", {}) if mark.exists() else {}
    facts = TargetFacts(**told_facts({**noted, **known}, mark))
    return Content(
        config["drafter"], config.get("head", {}), facts, vocab_ids=_draft_vocabulary(config, file)
    )


def _draft_vocabulary(config: Mapping[str, Any], file: Path) -> Tensor | None:
    """Ids that a run drafts from; they stay in the file that its configuration names."""
    path = config["drafter"].get("draft_vocab")
    if path is None:
        return None
    ids = read_json(Path(path))
    if config.get("files", {}).get("drafter.draft_vocab") != content_sha256(path):
        raise ArtefactError(f"{path} has changed since {file.parent} was trained; put it back")
    return torch.tensor(ids)


def _refuse_to_write(_content: Content, _dtype: str) -> dict[str, Any]:
    raise ValueError("a run directory is written by training, not by export")


RUN = Layout("run", _refuse_to_write, _read_run, _names, prefix="drafter.")
