"""A checkpoint folder: model.safetensors, config.json, provenance.json and README.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from xpress_exp.export.content import Content
from xpress_exp.export.reading import LAYOUTS
from xpress_exp.formats import refusal
from xpress_exp.run_dir import atomic_path, sha256_file, write_json, write_text


def write_folder(
    folder: Path, name: str, content: Content, dtype: str, facts: Mapping[str, Any], card: str
) -> str:
    """Write `content` in the format `name` with weights in `dtype`; returns their SHA-256.

    content.shared holds the target's matrices. facts: provenance stored beside the weights; card:
    text of README.md. Raises ValueError for a drafter or head that the format has no place for, and
    for weights beyond the dtype; nothing is written then.
    """
    told = refusal(name, content.drafter, content.head)
    if told is not None:
        raise ValueError(told)
    layout, file = LAYOUTS[name], folder / "model.safetensors"
    named = {layout.name_in_file(ours, content.head): t for ours, t in content.tensors.items()}
    tensors = {
        key: _narrowed(key, tensor, dtype)
        for key, tensor in {**named, **layout.extra(content)}.items()
    }
    config = layout.write(content, dtype)
    with atomic_path(file) as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})
    digest = sha256_file(file)
    write_json(folder / "config.json", {**config, "xpress_exp": _record(content, name, digest)})
    write_json(folder / "provenance.json", {**facts, "model_sha256": digest})
    write_text(folder / "README.md", card)
    return digest


def _narrowed(name: str, tensor: Tensor, dtype: str) -> Tensor:
    """A copy on the CPU; only numbers with a fraction change their type."""
    if not tensor.is_floating_point():
        return tensor.detach().cpu().contiguous()
    # A copy of its own: safetensors refuses tensors that share memory.
    narrow = tensor.detach().to("cpu", getattr(torch, dtype), copy=True).contiguous()
    if not bool(narrow.isfinite().all()):
        raise ValueError(f"{name} does not fit export.dtype={dtype}; use bfloat16 or float32")
    return narrow


def _record(content: Content, name: str, digest: str) -> dict[str, Any]:
    """Our own part of config.json: what other layouts' fields cannot say."""
    facts = asdict(content.target)
    return {
        "format": name,
        "drafter": dict(content.drafter),
        "head": dict(content.head),
        "target": facts.pop("name"),
        "target_facts": {key: value for key, value in facts.items() if value is not None},
        "num_passes": content.num_passes,
        "sha256": digest,
    }
