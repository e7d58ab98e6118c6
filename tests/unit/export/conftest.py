"""Folders as exported and as published, and ways to damage them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from xpress_exp.builders import DraftModel
from xpress_exp.export import Content, write_folder
from xpress_exp.run_dir import read_json, write_json
from xpress_exp.target import TinyTarget


@pytest.fixture
def target(make_target: Callable[..., TinyTarget]) -> TinyTarget:
    return make_target("qwen3", dtype=torch.float32)


@pytest.fixture
def write(
    target: TinyTarget,
    make_model: Callable[..., DraftModel],
    make_content: Callable[..., Content],
    tmp_path: Path,
) -> Callable[..., Path]:
    """Folder of a random model in a format; `keep` False removes what only our exporter writes."""

    def make(
        name: str,
        head: str = "none",
        convention: str = "fill_in",
        keep: bool = True,
        **drafter: Any,
    ) -> Path:
        model = make_model(target, head, convention, randomize=0.3)
        content = make_content(target, model, head, **drafter)
        folder = tmp_path / name
        write_folder(folder, name, content, "float32", {"commit": "abc"}, "card")
        if not keep:
            (folder / "provenance.json").unlink()
            edit(folder, lambda config: config.pop("xpress_exp", None))
        return folder

    return make


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change config.json in place."""
    config = read_json(folder / "config.json")
    change(config)
    write_json(folder / "config.json", config)


def edit_tensors(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    """Change the weights in place."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.fixture
def damage() -> Any:
    """(edit, edit_tensors)."""
    return edit, edit_tensors
