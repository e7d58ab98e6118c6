"""Any Hugging Face decoder-only LM, by hub name or local path."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from xpress_exp.run_dir import sha256_file
from xpress_exp.target.model import TargetModel


class HFTarget(TargetModel):
    """`name_or_path` as for `from_pretrained`; dtype: the name of a torch floating-point type.

    Raises ValueError when nothing can be loaded from there.
    """

    def __init__(
        self,
        name_or_path: str,
        layer_ids: Sequence[int],
        dtype: str = "float32",
        device: str = "cpu",
        cache_dir: str | None = None,  # noqa: ARG002  one signature for all targets
        **facts: Any,
    ) -> None:
        try:
            tokenizer = AutoTokenizer.from_pretrained(name_or_path)
            model: Any = AutoModelForCausalLM.from_pretrained(
                name_or_path, dtype=getattr(torch, dtype)
            )
        except (OSError, ValueError, SafetensorError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"target.name_or_path={name_or_path!r} cannot be loaded ({reason}); "
                "give a hub name or a folder with config.json, weights and tokenizer"
            ) from error
        identity = {
            "source": name_or_path,
            "dtype": dtype,
            **_weights_identity(model, name_or_path),
        }
        super().__init__(model.to(device), tokenizer, name_or_path, layer_ids, identity, facts)


def _weights_identity(model: Any, name_or_path: str) -> dict[str, str]:
    """The hub commit, or for a local folder a hash over config and weight files."""
    folder = Path(name_or_path)
    if not folder.is_dir():
        return {"hub_commit": str(getattr(model.config, "_commit_hash", None))}
    digest = hashlib.sha256()
    weights = [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    for file in sorted([folder / "config.json", *weights]):
        digest.update(f"{file.name}:{sha256_file(file)}".encode())
    return {"weights_sha256": digest.hexdigest()}
