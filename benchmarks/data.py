"""Making training data: regeneration and feature capture against plain loops, the size of a cached
token, and what a kill costs.

    python benchmarks/data.py [--quick]

The loops are Transformers': `generate` for one prompt at a time, one forward for one document at a
time. Greedy, so that both sides must write the same tokens.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from common import Figure, main, ratio, seconds
from restart import restarts

from xpress_exp.builders import build_target
from xpress_exp.data import BuiltinPrompts
from xpress_exp.data.capture import capture_documents
from xpress_exp.data.feature_cache import DTYPES, cache_features
from xpress_exp.data.response import Response, ResponseSet
from xpress_exp.data.response_store import unpack
from xpress_exp.grid import compose_points
from xpress_exp.stage.prepare import SHIPPED
from xpress_exp.target import TargetModel, generate_batch

LOOPED = 6  # prompts of the loop in one round; the batch has all


def prompts(target: TargetModel, count: int) -> list[list[int]]:
    """Token ids of the first training prompts."""
    rows = list(BuiltinPrompts(split="train", num_prompts=count, seed=0))
    return [list(target.encode_chat(list(row.messages))) for row in rows]  # type: ignore[union-attr]


def regeneration(target: TargetModel, batch: int, tokens: int, rounds: int) -> dict[str, Figure]:
    """Tokens per second of a batch over those of a `generate` loop, in turns."""
    asked = prompts(target, batch)
    model: Any = target._model  # Transformers' own, which the target wraps
    written: dict[int, tuple[int, ...]] = {}
    looped: dict[int, tuple[int, ...]] = {}

    def whole_batch() -> None:
        made = generate_batch(target, asked, tokens, 0.0, 1.0, [0] * len(asked))
        written.update({row: answer.ids for row, answer in enumerate(made)})

    def loop(rows: Sequence[int]) -> None:
        for row in rows:
            ids = torch.tensor([asked[row]])
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False
            )
            looped[row] = tuple(out[0, ids.shape[1] :].tolist())

    with torch.inference_mode():
        generate_batch(target, asked[:2], 2, 0.0, 1.0, [0, 0])
        loop([0])
        per_token: dict[str, list[float]] = {"batch": [], "loop": []}
        for index in range(rounds):
            rows = [(index * LOOPED + place) % batch for place in range(LOOPED)]
            for name in ("batch", "loop") if index % 2 else ("loop", "batch"):
                if name == "batch":
                    took = seconds(whole_batch)
                    count = sum(len(ids) for ids in written.values())
                else:
                    took = seconds(lambda rows=rows: loop(rows))
                    count = sum(len(looped[row]) for row in rows)
                per_token[name].append(took / count)
    unlike = [row for row, ids in looped.items() if ids != written[row]]
    rate = 1 / per_token["batch"][-1]
    note = (
        f"batch of {batch}, {tokens} new tokens at most, greedy; {rate:.0f} tokens/s here; "
        f"{len(looped) - len(unlike)} of {len(looped)} compared responses equal"
    )
    told = f"of {len(looped)} responses, written by the batch and by `generate`, greedy"
    return {
        "regenerate_rate_over_generate": ratio(per_token["loop"], per_token["batch"], note),
        "regenerate_rows_unlike_generate": Figure(len(unlike), note=told),
    }


def shipped(count: int) -> ResponseSet:
    """The first responses that ship with the package."""
    with resources.as_file(resources.files("xpress_exp") / "asset" / SHIPPED) as path:
        packed = unpack(path)
    return dataclasses.replace(packed, responses=packed.responses[:count])


def capture(
    target: TargetModel, documents: Sequence[Response], dtype: str, rounds: int
) -> dict[str, Figure]:
    """Tokens per second of capture over those of plain forwards without features or logits."""
    decoder: Any = target._model.get_decoder()  # type: ignore[operator]
    ids = [torch.from_numpy(document.input_ids).long()[None] for document in documents]
    tokens = sum(len(document) for document in documents)

    def plain() -> None:
        for row in ids:
            decoder(input_ids=row, use_cache=False)

    def ours() -> None:
        capture_documents(documents, target, DTYPES[dtype])

    taken: dict[str, list[float]] = {"plain": [], "ours": []}
    with torch.inference_mode():
        plain()
        for index in range(rounds):
            for name in ("plain", "ours") if index % 2 else ("ours", "plain"):
                taken[name].append(seconds({"plain": plain, "ours": ours}[name]))
    rate = tokens / taken["ours"][-1]
    note = (
        f"{len(documents)} documents of {tokens} tokens, {dtype}, checks included; {rate:.0f} "
        "tokens/s here; the forward has neither logits nor features"
    )
    return {"capture_rate_over_forward": ratio(taken["plain"], taken["ours"], note)}


def cached_bytes(target: TargetModel, responses: ResponseSet, dtype: str) -> dict[str, Figure]:
    """Size of the shards on disk per token, everything included."""
    tokens = sum(len(response) for response in responses.responses)
    with tempfile.TemporaryDirectory() as place:
        cache_features(responses, target, Path(place), dtype, shard_tokens=65536)
        size = sum(file.stat().st_size for file in Path(place).iterdir())
    width = target.feature_size + target.hidden_size
    note = (
        f"{len(target.layer_ids)} layers and the final state, {width} numbers in {dtype}, ids, "
        f"mask and manifest; logits would take {4 * target.vocab_size} bytes"
    )
    return {"bytes_per_cached_token": Figure(size / tokens, note=note)}


def figures(quick: bool) -> dict[str, Figure]:
    found = restarts()  # first: it forks
    note = (
        f"documents computed again after they were stored, {found.kills} kills, "
        f"{found.documents} documents; {found.lost} were computed but not yet stored when a "
        "process died (one chunk or shard each time at most)"
    )
    [cfg] = compose_points([])
    target, dtype = build_target(cfg), cfg.data.features.dtype
    batch = 8 if quick else cfg.data.generation.batch_size
    responses = shipped(4 if quick else 16)
    return {
        **regeneration(target, batch, 8 if quick else 48, 2 if quick else 3),
        **capture(target, responses.responses, dtype, 2 if quick else 4),
        **cached_bytes(target, responses, dtype),
        "restart_repeated_work": Figure(found.repeated, note=note),
    }


if __name__ == "__main__":
    main(figures)
