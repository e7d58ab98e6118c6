"""How often `prepare` computes a document when it is killed again and again.

A process prepares 48 documents of a tiny random target and is killed with SIGKILL at several
moments; the same command then goes on. Every document that a process computed or stored is counted.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from omegaconf import DictConfig

from xpress_exp.data import feature_cache
from xpress_exp.data import regenerate as regeneration
from xpress_exp.grid import compose_points
from xpress_exp.stage.prepare import prepare

# Part of the work after which a process is killed, of what a run without a kill reports.
KILLS = (0.15, 0.4, 0.55, 0.8)
CHUNK, DOCUMENTS, SHARD_TOKENS = 4, 48, 600
# Chunks of the tiny target take a millisecond: a killer could never meet one.
CHUNK_SECONDS = 0.05
PATIENCE = 120.0


@dataclass(frozen=True)
class Counted:
    """repeated: documents computed again after they had been stored. lost: documents computed but
    not stored when a process died, and so computed again."""

    repeated: int
    lost: int
    kills: int
    documents: int


def settings(folder: Path) -> DictConfig:
    """The smoke experiment with more documents, small chunks and small shards."""
    return compose_points(
        [
            "+experiment=tiny",
            "arm=none",
            f"paths.cache={folder / 'cache'}",
            f"data.source.num_prompts={DOCUMENTS}",
            f"data.generation.batch_size={CHUNK}",
            f"data.features.shard_tokens={SHARD_TOKENS}",
        ]
    )[0]


def _watched(cfg: DictConfig, log: Path) -> None:
    """`prepare` in a child process; writes 'stage event document' lines as things happen."""
    torch.set_num_threads(1)
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def tell(stage: str, event: str, ids: Sequence[str]) -> None:
        os.write(file, "".join(f"{stage} {event} {one}\n" for one in ids).encode())

    def told(
        inner: Callable[..., Any], stage: str, event: str, documents: int, pause: float = 0.0
    ) -> Callable[..., Any]:
        """`inner`, then a line for each of the documents in its argument number `documents`."""

        def run(*arguments: Any, **named: Any) -> Any:
            result = inner(*arguments, **named)
            rows = arguments[documents]
            tell(stage, event, [getattr(row, "row", row).id for row in rows])
            time.sleep(pause)
            return result

        return run

    capture, write_shard = feature_cache.capture_documents, feature_cache._write_shard
    generate, write_chunk = regeneration._generate, regeneration.write_chunk
    with (
        patch.object(
            regeneration, "_generate", told(generate, "response", "computed", 0, CHUNK_SECONDS)
        ),
        patch.object(regeneration, "write_chunk", told(write_chunk, "response", "stored", 1)),
        patch.object(
            feature_cache,
            "capture_documents",
            told(capture, "feature", "computed", 0, CHUNK_SECONDS),
        ),
        patch.object(feature_cache, "_write_shard", told(write_shard, "feature", "stored", 1)),
    ):
        prepare(cfg)


def _lines(log: Path) -> list[tuple[str, str, str]]:
    if not log.exists():
        return []
    rows = [line.split(" ", 2) for line in log.read_text(encoding="utf-8").splitlines()]
    return [(stage, event, document) for stage, event, document in rows]


def _run(cfg: DictConfig, log: Path, kill_at: int | None) -> None:
    """One process; killed as soon as the log has kill_at lines. Raises RuntimeError when it fails
    or takes too long."""
    child = multiprocessing.get_context("fork").Process(target=_watched, args=(cfg, log))
    child.start()
    assert child.pid is not None
    limit = time.monotonic() + PATIENCE
    while child.is_alive() and time.monotonic() < limit:
        if kill_at is not None and len(_lines(log)) >= kill_at:
            os.kill(child.pid, signal.SIGKILL)
            child.join()
            return
        time.sleep(0.002)
    if child.is_alive():
        child.kill()
        raise RuntimeError(f"prepare took more than {PATIENCE:.0f} s on the tiny target")
    child.join()
    if child.exitcode != 0:
        raise RuntimeError(f"prepare ended with {child.exitcode}")


def counted(lines: Sequence[tuple[str, str, str]]) -> tuple[int, int]:
    """(computed after it was stored, computed again without having been stored)."""
    stored: set[tuple[str, str]] = set()
    computed: Counter[tuple[str, str]] = Counter()
    repeated = lost = 0
    for stage, event, document in lines:
        key = (stage, document)
        if event == "stored":
            stored.add(key)
            continue
        repeated += key in stored
        lost += key not in stored and computed[key] > 0
        computed[key] += 1
    return repeated, lost


def restarts() -> Counted:
    """Kill, go on, count. To be called before this process has used threads of its own."""
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "whole"
        _run(settings(whole), Path(place) / "whole.log", None)
        total = len(_lines(Path(place) / "whole.log"))
        cfg, log = settings(Path(place) / "killed"), Path(place) / "killed.log"
        for share in KILLS:
            _run(cfg, log, int(share * total))
        _run(cfg, log, None)
        repeated, lost = counted(_lines(log))
        documents = {line[2] for line in _lines(log)}
        assert documents, "nothing was computed, so nothing was tested"
        files = [
            sorted(p.name for p in f.rglob("*.jsonl")) for f in (whole, Path(place) / "killed")
        ]
        assert files[0] == files[1], "the killed run ended in other files"
        return Counted(repeated, lost, len(KILLS), len(documents))
