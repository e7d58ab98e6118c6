"""Let the target answer every prompt, resumably, with an account of every row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import TemplateError
from tqdm import tqdm

from xpress_exp.data.conversation import BrokenRow, PromptRow
from xpress_exp.data.response import (
    MANIFEST,
    GenerationSettings,
    Response,
    ResponseSet,
    chunk_path,
    claim_folder,
    open_folder,
    read_chunk,
    responses_identity,
    usable,
    write_chunk,
)
from xpress_exp.data.source import PromptSource
from xpress_exp.run_dir import ArtefactError, provenance, sha256_file, write_json
from xpress_exp.target import TargetModel, generate_batch

# Rows are sorted by length inside windows of this many chunks: little padding, and a window
# depends on its own rows only.
CHUNKS_PER_WINDOW = 16
_REASONS_SHOWN = 3


@dataclass(frozen=True)
class EncodedRow:
    """A row that will be answered: its ids include the template's generation prompt."""

    row: PromptRow
    prompt_ids: tuple[int, ...]


def regenerate(
    source: PromptSource,
    target: TargetModel,
    generation: GenerationSettings,
    max_length: int,
    max_broken_share: float,
    out_dir: Path,
) -> ResponseSet:
    """Answer every usable row of `source` and close `out_dir` with a manifest.

    max_length: longest allowed prompt + response, tokens; longer prompts are skipped. A kill loses
    at most one chunk; a rerun continues and ends in the same bytes. A closed folder is only read.

    Raises ValueError when the share of broken or empty rows exceeds `max_broken_share` or nothing
    is left, ArtefactError when the folder is corrupt or belongs to other data.
    """
    identity = responses_identity(source.identity, target.identity, generation, max_length)
    if (out_dir / MANIFEST).exists():
        return open_folder(out_dir, identity)
    claim_folder(out_dir, identity)
    encoded, reasons = encode_rows(source, target, max_length - generation.max_new_tokens)
    num_input = len(encoded) + len(reasons)
    # Known before the first token: do not spend hours to refuse the result.
    check_share(reasons, num_input, max_broken_share)
    if not encoded:
        raise ValueError(
            f"none of {num_input} prompts fits data.max_length={max_length} with "
            f"data.generation.max_new_tokens={generation.max_new_tokens}; raise data.max_length"
        )
    chunks = split_chunks(encoded, generation.batch_size)
    responses = _answer(chunks, target, generation, out_dir)
    reasons += [
        {"id": row.id, "status": "failed", "reason": f"empty response to prompt {row.id}"}
        for row in sorted(responses, key=lambda row: row.index)
        if row.is_empty
    ]
    check_share(reasons, num_input, max_broken_share)
    # A file of its own: the manifest stays equal between an interrupted run and a straight one.
    write_json(out_dir / "provenance.json", provenance())
    write_json(out_dir / MANIFEST, _manifest(identity, num_input, responses, reasons, out_dir))
    return open_folder(out_dir, identity)


def encode_rows(
    source: PromptSource, target: TargetModel, max_prompt_tokens: int
) -> tuple[list[EncodedRow], list[dict[str, str]]]:
    """Encode every row; returns the rows to answer and the reasons for the others."""
    encoded: list[EncodedRow] = []
    reasons: list[dict[str, str]] = []
    for row in source:
        if isinstance(row, BrokenRow):
            reasons.append({"id": row.id, "status": "failed", "reason": row.reason})
            continue
        try:
            ids = target.encode_chat(list(row.messages))
        except TemplateError as error:
            reason = f"row {row.index + 1}: the chat template refuses it ({error})"
            reasons.append({"id": row.id, "status": "failed", "reason": reason})
            continue
        if len(ids) > max_prompt_tokens:
            reason = f"too long: {len(ids)} prompt tokens, at most {max_prompt_tokens} fit"
            reasons.append({"id": row.id, "status": "skipped", "reason": reason})
            continue
        encoded.append(EncodedRow(row, tuple(ids)))
    return encoded, reasons


def check_share(reasons: Sequence[dict[str, str]], num_input: int, limit: float) -> None:
    """Raises ValueError when failed rows are more than `limit` of the input, or input is empty."""
    if num_input == 0:
        raise ValueError("data.source yields no row; name a source with at least one prompt")
    failed = [entry["reason"] for entry in reasons if entry["status"] == "failed"]
    share = len(failed) / num_input
    if share > limit:
        raise ValueError(
            f"{len(failed)} of {num_input} rows ({share:.1%}) are broken or empty, more than "
            f"data.max_broken_share={limit}; first: {'; '.join(failed[:_REASONS_SHOWN])}"
        )


def split_chunks(rows: Sequence[EncodedRow], batch_size: int) -> list[list[EncodedRow]]:
    """Chunks of at most `batch_size` rows of similar length; a pure function of the rows."""
    window = batch_size * CHUNKS_PER_WINDOW
    chunks: list[list[EncodedRow]] = []
    for start in range(0, len(rows), window):
        ordered = sorted(
            rows[start : start + window], key=lambda row: (len(row.prompt_ids), row.row.index)
        )
        chunks += [ordered[at : at + batch_size] for at in range(0, len(ordered), batch_size)]
    return chunks


def _answer(
    chunks: Sequence[list[EncodedRow]],
    target: TargetModel,
    generation: GenerationSettings,
    folder: Path,
) -> list[Response]:
    """Responses of all chunks; finished chunks are read, the others generated and written."""
    responses: list[Response] = []
    total = sum(len(chunk) for chunk in chunks)
    with tqdm(total=total, desc="responses", unit="row", mininterval=5.0) as progress:
        for number, chunk in enumerate(chunks):
            path = chunk_path(folder, number)
            if path.exists():
                rows = _read_matching(path, chunk)
                # Not `update`: rows of an earlier process would spoil the ETA.
                progress.initial += len(rows)
                progress.n += len(rows)
            else:
                rows = _generate(chunk, target, generation)
                write_chunk(path, rows)
                progress.update(len(rows))
            responses.extend(rows)
    return responses


def _generate(
    chunk: Sequence[EncodedRow], target: TargetModel, generation: GenerationSettings
) -> list[Response]:
    generated = generate_batch(
        target,
        [list(item.prompt_ids) for item in chunk],
        max_new_tokens=generation.max_new_tokens,
        temperature=generation.temperature,
        top_p=generation.top_p,
        seeds=[generation.row_seed(item.row.id) for item in chunk],
    )
    return [
        Response(
            index=item.row.index,
            id=item.row.id,
            domain=item.row.domain,
            family=item.row.family,
            prompt_ids=np.asarray(item.prompt_ids, dtype=np.int32),
            response_ids=np.asarray(answer.ids, dtype=np.int32),
            finish_reason=answer.finish_reason,
        )
        for item, answer in zip(chunk, generated, strict=True)
    ]


def _read_matching(path: Path, chunk: Sequence[EncodedRow]) -> list[Response]:
    """Rows of a finished chunk; raises ArtefactError unless they answer exactly these prompts."""
    rows = read_chunk(path)
    found = [(row.id, tuple(row.prompt_ids.tolist())) for row in rows]
    if found != [(item.row.id, item.prompt_ids) for item in chunk]:
        raise ArtefactError(
            f"{path} does not hold the rows of this chunk (partial or changed); delete it and "
            "prepare again"
        )
    return rows


def _manifest(
    identity: dict[str, Any],
    num_input: int,
    responses: Sequence[Response],
    reasons: Sequence[dict[str, str]],
    folder: Path,
) -> dict[str, Any]:
    kept = usable(responses)
    status = Counter(entry["status"] for entry in reasons)
    return {
        "identity": identity,
        "counts": {
            "input": num_input,
            "success": len(kept),
            "failed": status["failed"],
            "skipped": status["skipped"],
            "prompt_tokens": sum(len(row.prompt_ids) for row in kept),
            "response_tokens": sum(len(row.response_ids) for row in kept),
        },
        "finish_reasons": dict(Counter(row.finish_reason for row in kept)),
        "reasons": list(reasons),
        "chunks": {path.name: sha256_file(path) for path in sorted(folder.glob("chunk-*.jsonl"))},
    }
