"""The target's responses as exact token ids, and the folder they are stored in.

A folder `responses-<fingerprint>/` holds identity.json (written first), chunk-NNNNN.jsonl files
and manifest.json (written last: it closes the folder).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xpress_exp.run_dir import (
    ArtefactError,
    fingerprint,
    read_json,
    sha256_file,
    write_json,
    write_text,
)

MANIFEST = "manifest.json"
IDENTITY = "identity.json"
Ids = np.ndarray[tuple[int], np.dtype[np.int32]]


@dataclass(frozen=True)
class GenerationSettings:
    """How responses are drawn. The seed of a row is derived from seed and the row's id."""

    temperature: float
    top_p: float
    max_new_tokens: int
    batch_size: int
    seed: int

    def row_seed(self, row_id: str) -> int:
        """63-bit seed of a row: independent of its batch and of its place in the source."""
        digest = hashlib.sha256(f"{self.seed}|{row_id}".encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True, eq=False)
class Response:
    """A prompt and the target's answer, int32 [prompt length] and int32 [response length].

    The ids are those that were fed and drawn; text is never encoded again. finish_reason 'stop'
    (the stop token is the last id) or 'length'.
    """

    index: int
    id: str
    domain: str
    family: str
    prompt_ids: Ids
    response_ids: Ids
    finish_reason: str

    @property
    def input_ids(self) -> Ids:
        return np.concatenate([self.prompt_ids, self.response_ids])

    @property
    def loss_mask(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """True exactly where the target generated the token."""
        return np.arange(len(self)) >= len(self.prompt_ids)

    @property
    def is_empty(self) -> bool:
        """Fewer than two generated tokens: no anchor has a label, so nothing can be learned."""
        return len(self.response_ids) < 2

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


@dataclass(frozen=True, eq=False)
class ResponseSet:
    """Usable responses in source order, what they were made from, and the accounting.

    counts: input = success + failed + skipped, and tokens. reasons: one {id, status, reason} for
    every row that is not a success.
    """

    responses: tuple[Response, ...]
    identity: dict[str, Any]
    counts: dict[str, int]
    reasons: tuple[dict[str, str], ...]

    @property
    def content_sha256(self) -> str:
        """Hash of every id and token; equal for equal data however it was stored."""
        digest = hashlib.sha256()
        for response in self.responses:
            lengths = (len(response.prompt_ids), len(response.response_ids))
            digest.update(f"{response.id}|{lengths}|".encode())
            digest.update(response.input_ids.astype("<i4").tobytes())
        return digest.hexdigest()

    @property
    def fingerprint(self) -> str:
        """Names the data by content, so that features of equal responses are shared."""
        return fingerprint({"responses": self.content_sha256})


def responses_identity(
    source: Mapping[str, Any],
    target: Mapping[str, Any],
    generation: GenerationSettings,
    max_length: int,
) -> dict[str, Any]:
    """Everything that decides the responses, as plain JSON values."""
    content = {
        "source": dict(source),
        "target": dict(target),
        "generation": generation.as_dict(),
        "max_length": max_length,
    }
    return json.loads(json.dumps(content, sort_keys=True, default=str))


def claim_folder(folder: Path, identity: Mapping[str, Any]) -> None:
    """Write identity.json once; raises ArtefactError when the folder belongs to other data."""
    path = folder / IDENTITY
    if path.exists():
        if read_json(path) != identity:
            raise ArtefactError(
                f"{path} belongs to other data than asked for; delete {folder} or use another "
                "paths.cache"
            )
        return
    write_json(path, identity)


def chunk_path(folder: Path, number: int) -> Path:
    return folder / f"chunk-{number:05d}.jsonl"


def write_chunk(path: Path, responses: Iterable[Response]) -> None:
    """Write one finished chunk atomically; equal responses give equal bytes."""
    lines = []
    for row in responses:
        content = {
            "index": row.index,
            "id": row.id,
            "domain": row.domain,
            "family": row.family,
            "prompt_ids": row.prompt_ids.tolist(),
            "response_ids": row.response_ids.tolist(),
            "finish_reason": row.finish_reason,
        }
        lines.append(json.dumps(content, separators=(",", ":")) + "\n")
    write_text(path, "".join(lines))


def read_chunk(path: Path) -> list[Response]:
    """Read one chunk; raises ArtefactError naming the file and the fault."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [_response_of(row) for row in rows]
    except FileNotFoundError as error:
        raise ArtefactError(f"{path} is missing; delete {path.parent} and prepare again") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ArtefactError(f"{path} is corrupt ({error}); delete it and prepare again") from error


def _response_of(row: Mapping[str, Any]) -> Response:
    return Response(
        index=int(row["index"]),
        id=row["id"],
        domain=row["domain"],
        family=row["family"],
        prompt_ids=np.asarray(row["prompt_ids"], dtype=np.int32),
        response_ids=np.asarray(row["response_ids"], dtype=np.int32),
        finish_reason=row["finish_reason"],
    )


def open_folder(folder: Path, identity: Mapping[str, Any]) -> ResponseSet:
    """Read a closed folder and check every hash.

    Raises ArtefactError naming the file when the folder is open, belongs to other data, or a
    chunk differs from its hash.
    """
    manifest = read_json(folder / MANIFEST)
    if manifest["identity"] != identity:
        raise ArtefactError(
            f"{folder / MANIFEST} describes other data than asked for; delete {folder}"
        )
    responses: list[Response] = []
    for name, expected in manifest["chunks"].items():
        path = folder / name
        rows = read_chunk(path)
        if sha256_file(path) != expected:
            raise ArtefactError(
                f"{path} differs from its hash in {MANIFEST}: it was changed after it was "
                f"written; delete {folder} and prepare again"
            )
        responses.extend(rows)
    return ResponseSet(
        responses=usable(responses),
        identity=manifest["identity"],
        counts=manifest["counts"],
        reasons=tuple(manifest["reasons"]),
    )


def usable(responses: Sequence[Response]) -> tuple[Response, ...]:
    """Responses that are not empty, in source order."""
    kept = [response for response in responses if not response.is_empty]
    return tuple(sorted(kept, key=lambda response: response.index))
