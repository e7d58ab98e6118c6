"""The training job that `train_step.py` times, and the loop of the processes that run it.

Read by our interpreter and by the peer's: torch and the standard library only. Both sides fill
their models and their batch with the same numbers, drawn from the tensors' names.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import re
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HIDDEN, VOCAB, NUM_FEATURES = 576, 49152, 3
HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, LAYERS = 9, 3, 64, 1536, 1
RANK, BLOCK, CONTEXT, DOCUMENTS, MASK_ID, THETA = 256, 16, 1024, 4, 16, 1e5
GAMMA, PASSES, W_ANCHOR, W_CONSISTENCY = 7.0, 1, 0.6, 0.3
CE_WEIGHT, TV_WEIGHT = 0.1, 0.9  # total variation is half the L1 distance
# Standard deviations by the end of a tensor's name; logits come out with one of about 2.
SCALES = {"embed_tokens.weight": 0.1, "lm_head.weight": 0.08, "token_embed.weight": 1.0}


def noise(name: str, *shape: int) -> Tensor:
    """Normal float32 numbers of a tensor's name; ones for the weight of a norm."""
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    draw = torch.Generator().manual_seed(zlib.crc32(name.removeprefix("verifier_").encode()))
    scale = next((value for end, value in SCALES.items() if name.endswith(end)), 0.02)
    return torch.randn(shape, generator=draw) * scale


def batch(num_anchors: int) -> dict[str, Tensor]:
    """Four documents of 256 generated tokens, and ascending anchors whose blocks lie inside."""
    draw = torch.Generator().manual_seed(num_anchors)
    length = CONTEXT // DOCUMENTS
    places = torch.arange(CONTEXT)
    allowed = places[(places % length >= 1) & (places % length <= length - BLOCK)]
    chosen = torch.randperm(len(allowed), generator=draw)[:num_anchors]
    return {
        "input_ids": torch.randint(20, VOCAB, (CONTEXT,), generator=draw),
        "document_ids": places // length,
        "position_ids": places % length,
        "loss_mask": torch.ones(CONTEXT, dtype=torch.int64),
        "anchors": allowed[chosen].sort().values,
        "features": torch.randn(CONTEXT, NUM_FEATURES * HIDDEN, generator=draw),
        "raw_hidden": torch.randn(CONTEXT, HIDDEN, generator=draw),
    }


@dataclass(frozen=True)
class Work:
    """One kind of step. model 'dflash' or 'xpress'; variant is what a side lets one choose."""

    model: str
    anchors: int
    variant: str


def _memory(field: str) -> int:
    """Bytes of a VmRSS or VmHWM line of this process."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _give_back_freed() -> None:
    """So that memory which only the preparation needed does not count as held before the step."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def serve(prepare: Callable[[Work], Callable[[], float]]) -> None:
    """Answer requests on standard input, one JSON line each, until it ends.

    prepare gives the step of a kind of work: forward and backward, returning the loss. The answer
    has the step's seconds, its loss, and the bytes by which the peak exceeded the memory held
    before the first step of this process.
    """
    # Whatever the packages print must not reach the pipe.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    steps: dict[Work, Callable[[], float]] = {}
    held = 0
    for line in sys.stdin:
        work = Work(**json.loads(line))
        if work not in steps:
            steps[work] = prepare(work)
            _give_back_freed()
        held = held or _memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        begun = time.perf_counter()
        loss = steps[work]()
        seconds = time.perf_counter() - begun
        answer: dict[str, Any] = {"seconds": seconds, "loss": loss}
        answer["peak"] = _memory("VmHWM") - held
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
