"""The target's features of every document, in safetensors shards whose hashes are checked.

A folder `features-<fingerprint>/` holds shard-NNNNN.safetensors and manifest.json. The manifest
is rewritten after each shard: a shard counts once it is listed, and a rerun goes on from there.
Logits are never stored: the LM head gives them again from last_hidden.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from xpress_exp.data.capture import capture_documents
from xpress_exp.data.document import Document
from xpress_exp.data.response import Response, ResponseSet
from xpress_exp.run_dir import (
    ArtefactError,
    atomic_path,
    provenance,
    read_json,
    sha256_file,
    write_json,
)
from xpress_exp.target import TargetModel

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
MANIFEST = "manifest.json"
_TOKEN_BYTES = 9  # input id int64 and loss mask bool
log = logging.getLogger(__name__)


def features_identity(
    responses: ResponseSet, target: TargetModel, dtype: str, shard_tokens: int
) -> dict[str, Any]:
    """Everything that decides the shards; raises ValueError for an unknown dtype."""
    if dtype not in DTYPES:
        raise ValueError(f"data.features.dtype={dtype} is unknown; use one of {sorted(DTYPES)}")
    content = {
        "responses": responses.fingerprint,
        "target": target.identity,
        "layer_ids": list(target.layer_ids),
        "dtype": dtype,
        "shard_tokens": shard_tokens,
    }
    return json.loads(json.dumps(content, sort_keys=True, default=str))


class FeatureSet:
    """Read access to a closed folder; shards are mapped, not loaded."""

    def __init__(self, folder: Path, first_documents: Sequence[int], num_documents: int) -> None:
        self._shards = [_open_shard(shard_path(folder, i)) for i in range(len(first_documents))]
        self._offsets: list[Tensor] = [shard.get_tensor("offsets") for shard in self._shards]
        self._first = torch.tensor(list(first_documents))
        self._num_documents = num_documents

    def __len__(self) -> int:
        return self._num_documents

    def document(self, index: int) -> Document:
        """Document `index`, in the order of the responses; features in the stored dtype."""
        if not 0 <= index < len(self):
            raise IndexError(f"document {index} of {len(self)}")
        number = int(torch.searchsorted(self._first, index, right=True)) - 1
        local = index - int(self._first[number])
        start, end = self._offsets[number][local : local + 2].tolist()
        shard = self._shards[number]
        return Document(
            input_ids=shard.get_slice("input_ids")[start:end],
            loss_mask=shard.get_slice("loss_mask")[start:end],
            features=shard.get_slice("features")[start:end],
            last_hidden=shard.get_slice("last_hidden")[start:end],
        )


def cache_features(
    responses: ResponseSet, target: TargetModel, folder: Path, dtype: str, shard_tokens: int
) -> FeatureSet:
    """Capture what is missing in `folder`, close it and open it.

    dtype: float16 | bfloat16 | float32; shard_tokens: tokens per shard, at least one document.
    Raises ValueError when the disk is short or a feature is unusable, ArtefactError when a shard
    is corrupt or belongs to other data.
    """
    identity = features_identity(responses, target, dtype, shard_tokens)
    manifest = _read_manifest(folder, identity)
    if not manifest["done"]:
        shards = split_shards(responses.responses, shard_tokens)
        _check_disk(responses, target, folder, dtype, manifest["shards"])
        finished = sum(shard["documents"] for shard in manifest["shards"])
        with tqdm(
            total=len(responses.responses),
            initial=finished,
            desc="features",
            unit="document",
            mininterval=5.0,
        ) as progress:
            for number, documents in enumerate(shards):
                if number >= len(manifest["shards"]):
                    path = shard_path(folder, number)
                    _write_shard(path, documents, target, DTYPES[dtype], progress.update)
                    manifest["shards"].append(
                        {"sha256": sha256_file(path), "documents": len(documents)}
                    )
                    write_json(folder / MANIFEST, manifest)
        manifest["done"] = True
        write_json(folder / "provenance.json", provenance())
        write_json(folder / MANIFEST, manifest)
    return open_features(folder, identity, responses)


def open_features(folder: Path, identity: Mapping[str, Any], responses: ResponseSet) -> FeatureSet:
    """Open a closed folder; raises ArtefactError naming file and cause unless all is intact.

    Every shard's hash is verified, and every stored token is compared with the responses.
    """
    manifest = _read_manifest(folder, identity)
    if not manifest["done"]:
        raise ArtefactError(f"{folder / MANIFEST} is not closed; run stages=[prepare] first")
    first, total = [], 0
    for number, shard in enumerate(manifest["shards"]):
        path = shard_path(folder, number)
        if not path.is_file():
            raise ArtefactError(f"{path} is missing; delete {folder} and prepare again")
        if sha256_file(path) != shard["sha256"]:
            raise ArtefactError(
                f"{path} differs from its hash in {MANIFEST}; delete {folder} and prepare again"
            )
        first.append(total)
        total += shard["documents"]
    _check_tokens(folder, first, total, responses)
    return FeatureSet(folder, first, total)


def shard_path(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:05d}.safetensors"


def split_shards(responses: Sequence[Response], shard_tokens: int) -> list[list[Response]]:
    """Consecutive documents of at most `shard_tokens` tokens together, at least one each."""
    shards: list[list[Response]] = []
    room = 0
    for response in responses:
        if not shards or len(response) > room:
            shards.append([])
            room = shard_tokens
        shards[-1].append(response)
        room -= len(response)
    return shards


def feature_bytes(responses: ResponseSet, target: TargetModel, dtype: str) -> int:
    """Size of all shards on disk, bytes (headers excluded)."""
    tokens = sum(len(response) for response in responses.responses)
    width = target.feature_size + target.hidden_size
    return tokens * (width * DTYPES[dtype].itemsize + _TOKEN_BYTES)


def _read_manifest(folder: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.exists():
        return {"identity": dict(identity), "shards": [], "done": False}
    manifest = read_json(path)
    if manifest["identity"] != identity:
        raise ArtefactError(f"{path} describes other features than asked for; delete {folder}")
    return manifest


def _check_disk(
    responses: ResponseSet,
    target: TargetModel,
    folder: Path,
    dtype: str,
    finished: Sequence[Mapping[str, Any]],
) -> None:
    """Log the estimate; raises ValueError when the remaining shards would not fit."""
    done = sum(shard_path(folder, number).stat().st_size for number in range(len(finished)))
    needed = max(0, feature_bytes(responses, target, dtype) - done)
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    log.info("features need %.2f GB more in %s, %.2f GB free", needed / 1e9, folder, free / 1e9)
    if needed > free:
        raise ValueError(
            f"data.features.mode=cached needs {needed / 1e9:.2f} GB in {folder} but only "
            f"{free / 1e9:.2f} GB are free; set data.features.mode=online or paths.cache"
        )


def _write_shard(
    path: Path,
    documents: Sequence[Response],
    target: TargetModel,
    dtype: torch.dtype,
    on_documents: Callable[[int], object],
) -> None:
    captured = capture_documents(documents, target, dtype, on_documents=on_documents)
    offsets = torch.tensor([0, *(len(document) for document in documents)]).cumsum(0)
    content = {
        "input_ids": torch.cat([document.input_ids for document in captured]),
        "loss_mask": torch.cat([document.loss_mask for document in captured]),
        "features": torch.cat([document.features for document in captured]),
        "last_hidden": torch.cat([document.last_hidden for document in captured]),
        "offsets": offsets,
    }
    with atomic_path(path) as temporary:
        save_file(content, temporary)


def _open_shard(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ArtefactError(f"{path} cannot be read ({error}); delete its folder") from error


def _check_tokens(folder: Path, first: Sequence[int], total: int, responses: ResponseSet) -> None:
    """Raises ArtefactError for the first shard whose tokens are not those of the responses."""
    if total != len(responses.responses):
        raise ArtefactError(
            f"{folder / MANIFEST} lists {total} documents for {len(responses.responses)} "
            f"responses; delete {folder} and prepare again"
        )
    for number, start in enumerate(first):
        path = shard_path(folder, number)
        end = first[number + 1] if number + 1 < len(first) else total
        expected = [response.input_ids for response in responses.responses[start:end]]
        stored = _open_shard(path).get_tensor("input_ids").numpy()
        if stored.tolist() != [token for ids in expected for token in ids.tolist()]:
            raise ArtefactError(
                f"{path} holds other tokens than its responses; delete {folder} and prepare again"
            )
