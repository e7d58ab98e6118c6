"""The loss and its gradients: chunked with a hand-written backward pass, against the naive way.

Naive: automatic differentiation of the same loss with all blocks in one chunk. Both start from the
drafter's hidden states. Peaks are measured in fresh processes, times in turns in one.

    python benchmarks/objective.py [--quick] [--json FILE]
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import common
import torch
import train_job as job
import train_worker
from common import Figure

ANCHORS = 64
WAYS = {"fused": 16, "autograd": ANCHORS}  # blocks per chunk of each way


def prepare(way: str) -> Callable[[], float]:
    """Objective and head of the job from hidden states that are given."""
    lm_head = job.noise("lm_head.weight", job.VOCAB, job.HIDDEN)
    embedding = job.noise("embed_tokens.weight", job.VOCAB, job.HIDDEN)
    head = train_worker.build_head("xpress", embedding).train()
    batch = train_worker.build_batch(ANCHORS)
    targets = train_worker.targets_of(batch, "xpress", head, lm_head)()
    objective = train_worker.build_objective("xpress", way, WAYS[way])
    hidden = torch.nn.functional.rms_norm(
        job.noise("hidden", ANCHORS, job.BLOCK, job.HIDDEN), (job.HIDDEN,)
    ).requires_grad_()

    def step() -> float:
        head.zero_grad(set_to_none=True)
        hidden.grad = None
        count = targets.weights.sum()
        losses = objective(hidden, head, lm_head, None, targets, train_worker.SLOTS, 0.0, count)
        losses.total.backward()
        return float(losses.total.detach())

    return step


def peak(way: str) -> float:
    """Bytes that the first step of a fresh process adds at most."""
    command = [sys.executable, str(Path(__file__)), "--serve"]
    request = f'{{"model": "xpress", "anchors": {ANCHORS}, "variant": "{way}"}}\n'
    # Without the tuned allocator: freed memory that is kept would count as used.
    answer = subprocess.run(command, input=request, capture_output=True, text=True, check=True)
    return json.loads(answer.stdout)["peak"]


def figures(quick: bool) -> dict[str, Figure]:
    peaks = {way: peak(way) for way in WAYS}
    taken = common.in_turns({way: prepare(way) for way in WAYS}, rounds=1 if quick else 7)
    shape = f"{ANCHORS} anchors x {job.BLOCK - 1} slots x {job.VOCAB} tokens"
    sizes = " against ".join(f"{peaks[way] / 1e9:.2f} GB" for way in WAYS)
    return {
        "objective_peak_over_naive": Figure(
            peaks["fused"] / peaks["autograd"], note=f"{sizes}; {shape}"
        ),
        "objective_time_over_naive": common.ratio(taken["fused"], taken["autograd"], shape),
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        job.serve(lambda work: prepare(work.variant))
    else:
        common.main(figures)
