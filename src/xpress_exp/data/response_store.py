"""Responses as one small file that ships with the package: no pickle, one hash.

Layout: lzma of [magic 8 bytes][header length uint32][header JSON][prompt and response ids of all
rows, little-endian uint16 or int32]. `<file>.json` beside it holds its SHA-256 and what it is.
"""

from __future__ import annotations

import json
import lzma
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from xpress_exp.data.regenerate import encode_rows
from xpress_exp.data.response import GenerationSettings, Response, ResponseSet, responses_identity
from xpress_exp.data.source import PromptSource
from xpress_exp.run_dir import (
    SCHEMA_VERSION,
    ArtefactError,
    atomic_path,
    provenance,
    read_json,
    sha256_file,
    write_json,
)
from xpress_exp.target import TargetModel

MAGIC = b"XPRESPN1"
_UINT16_LIMIT = 1 << 16
# Neither changes the law of a response: batch_size only groups rows, num_prompts and sha256 of a
# generated source only say how many of the same rows there are (ids and tokens are compared).
_NO_MATCH = {"source": {"num_prompts", "sha256"}, "generation": {"batch_size"}}


def sidecar(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def pack(responses: ResponseSet, path: Path) -> None:
    """Write `path` and its sidecar atomically; equal responses give equal bytes."""
    rows = responses.responses
    tokens = np.concatenate([row.input_ids for row in rows]) if rows else np.zeros(0, np.int32)
    dtype = "<u2" if tokens.size == 0 or int(tokens.max()) < _UINT16_LIMIT else "<i4"
    header = json.dumps(
        {
            "schema_version": SCHEMA_VERSION,
            "identity": responses.identity,
            "counts": responses.counts,
            "reasons": list(responses.reasons),
            "dtype": dtype,
            "rows": [
                (
                    row.index,
                    row.id,
                    row.domain,
                    row.family,
                    row.finish_reason,
                    len(row.prompt_ids),
                    len(row.response_ids),
                )
                for row in rows
            ],
        },
        sort_keys=True,
    ).encode()
    content = MAGIC + struct.pack("<I", len(header)) + header + tokens.astype(dtype).tobytes()
    with atomic_path(path) as temporary:
        temporary.write_bytes(lzma.compress(content, preset=9))
    facts = {
        "sha256": sha256_file(path),
        "content_sha256": responses.content_sha256,
        "identity": responses.identity,
        "counts": responses.counts,
        "provenance": provenance(),
    }
    write_json(sidecar(path), facts)


def unpack(path: Path) -> ResponseSet:
    """Read a packed file; raises ArtefactError naming the file when it is missing or corrupt."""
    facts = read_json(sidecar(path))
    if not path.is_file():
        raise ArtefactError(f"{path} is missing beside {sidecar(path).name}; reinstall the package")
    if sha256_file(path) != facts["sha256"]:
        raise ArtefactError(
            f"{path} differs from the SHA-256 in {sidecar(path).name}; reinstall the package or "
            "set data.responses=regenerate"
        )
    content = lzma.decompress(path.read_bytes())
    if content[: len(MAGIC)] != MAGIC:
        raise ArtefactError(f"{path} is not a packed response file (magic {content[:8]!r})")
    start = len(MAGIC) + 4
    (length,) = struct.unpack("<I", content[len(MAGIC) : start])
    header = json.loads(content[start : start + length])
    tokens = np.frombuffer(content, dtype=header["dtype"], offset=start + length).astype(np.int32)
    rows = []
    at = 0
    for index, row_id, domain, family, finish, num_prompt, num_response in header["rows"]:
        middle, end = at + num_prompt, at + num_prompt + num_response
        rows.append(
            Response(index, row_id, domain, family, tokens[at:middle], tokens[middle:end], finish)
        )
        at = end
    return ResponseSet(tuple(rows), header["identity"], header["counts"], tuple(header["reasons"]))


def shipped_responses(
    path: Path,
    source: PromptSource,
    target: TargetModel,
    generation: GenerationSettings,
    max_length: int,
) -> ResponseSet:
    """The packed responses of exactly the rows of `source`, which may be a part of those packed.

    Every prompt is encoded again and compared, so a changed template or generator is noticed.
    Raises ValueError naming the differing field when the file answers another question.
    """
    packed = unpack(path)
    wanted = responses_identity(source.identity, target.identity, generation, max_length)
    _check_identity(wanted, packed.identity)
    by_id = {row.id: row for row in packed.responses}
    known = {entry["id"]: entry for entry in packed.reasons}
    encoded, reasons = encode_rows(source, target, max_length - generation.max_new_tokens)
    rows: list[Response] = []
    for item in encoded:
        row = by_id.get(item.row.id)
        if row is not None and tuple(row.prompt_ids.tolist()) == item.prompt_ids:
            rows.append(row)
        elif row is None and item.row.id in known:
            reasons.append(known[item.row.id])
        else:
            what = "is not among the shipped rows" if row is None else "has another prompt"
            raise ValueError(
                f"data.source: row {item.row.id} {what}; set data.responses=regenerate"
            )
    if not rows:
        raise ValueError("data.source yields no shipped row; set data.responses=regenerate")
    counts = _counts(rows, reasons)
    return ResponseSet(tuple(rows), wanted, counts, tuple(reasons))


def _counts(rows: list[Response], reasons: list[dict[str, str]]) -> dict[str, int]:
    failed = sum(entry["status"] == "failed" for entry in reasons)
    return {
        "input": len(rows) + len(reasons),
        "success": len(rows),
        "failed": failed,
        "skipped": len(reasons) - failed,
        "prompt_tokens": sum(len(row.prompt_ids) for row in rows),
        "response_tokens": sum(len(row.response_ids) for row in rows),
    }


def _check_identity(wanted: Mapping[str, Any], shipped: Mapping[str, Any]) -> None:
    """Raises ValueError for the first field that would give other responses."""
    for part in ("source", "target", "generation", "max_length"):
        mine, theirs = wanted[part], shipped[part]
        fields = [""] if not isinstance(mine, dict) else sorted({*mine, *theirs})
        for field in fields:
            if field in _NO_MATCH.get(part, set()):
                continue
            left = mine.get(field) if field else mine
            right = theirs.get(field) if field else theirs
            if left != right:
                name = f"data.{part}" if part != "target" else "target"
                raise ValueError(
                    f"{name}{'.' if field else ''}{field}={left} but the shipped responses were "
                    f"made with {right}; set data.responses=regenerate"
                )
