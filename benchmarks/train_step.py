"""Training steps (forward and backward) of ours and of the `speculators` package, on one job.

Two processes hold the models and take steps in turns, so that both meet the same machine; the one
that waits does not spin. Needs the environment `.parity/speculators`, built when it is missing.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import common
import train_job as job
from common import Figure

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "parity"))
# For glibc: keep freed memory. Its largest threshold is 32 MiB, which MALLOC_MMAP_MAX_ overrides.
TUNED = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_TOP_PAD_": str(256 * 2**20),
}
WAIT = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0", "GOMP_SPINCOUNT": "0"}
KINDS = tuple((model, anchors) for model in ("xpress", "dflash") for anchors in (64, 32))


@dataclass(frozen=True)
class Step:
    """What a process answers about one step."""

    seconds: float
    loss: float
    peak: int


class Worker:
    """A process that takes steps on request."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        places = {"PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **places, **WAIT, **environment},
            text=True,
        )

    def step(self, model: str, anchors: int, variant: str) -> Step:
        """Take one step. Raises RuntimeError when the process has died."""
        pipes: tuple[IO[str], IO[str]] = (self.process.stdin, self.process.stdout)  # type: ignore
        pipes[0].write(json.dumps(asdict(job.Work(model, anchors, variant))) + "\n")
        pipes[0].flush()
        answer = pipes[1].readline()
        if not answer:
            raise RuntimeError(f"{self.process.args} ended; its messages are above")
        return Step(**json.loads(answer))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.stdin.close()  # type: ignore[union-attr]
        self.process.wait()


def ours(tuned: bool) -> Worker:
    script = str(ROOT / "benchmarks" / "train_worker.py")
    return Worker([sys.executable, script, "keep" if tuned else "return"], {})


def theirs(tuned: bool) -> Worker:
    from environment import SPECULATORS

    folder = ROOT / ".parity"
    folder.mkdir(exist_ok=True)
    script = str(ROOT / "benchmarks" / "train_worker_speculators.py")
    interpreter = SPECULATORS.build(folder)
    return Worker([str(interpreter), script], TUNED if tuned else {})


def better_attention(peer: Worker, model: str, anchors: int) -> str:
    """Which of their two attentions is faster: the second of two steps each."""
    taken = {
        name: [peer.step(model, anchors, name) for _ in range(2)][1].seconds
        for name in ("sdpa", "eager")
    }
    return min(taken, key=lambda name: taken[name])


def take_turns(
    mine: Worker, peer: Worker, model: str, anchors: int, attention: str, rounds: int
) -> tuple[list[Step], list[Step]]:
    """Steps of both sides in turns, after one of each that is not counted."""
    pairs = []
    for index in range(rounds + 1):
        first = mine.step(model, anchors, "fused") if index % 2 else None
        other = peer.step(model, anchors, attention)
        pairs.append((first or mine.step(model, anchors, "fused"), other))
    for one, other in pairs:
        if not math.isclose(one.loss, other.loss, rel_tol=1e-4):
            raise ValueError(f"{model}, {anchors} anchors: losses differ, {one.loss} {other.loss}")
    mine_steps, peer_steps = zip(*pairs[1:], strict=True)
    return list(mine_steps), list(peer_steps)


def compare(tuned: bool, rounds: int) -> dict[str, Figure]:
    """Rates of all kinds, and the ratio of peaks of the first one, xPress at 64 anchors."""
    found: dict[str, Figure] = {}
    attentions: dict[str, str] = {}
    allocator = "freed memory kept by both" if tuned else "glibc's own settings on both sides"
    suffix = "" if tuned else "_untuned"
    with ours(tuned) as mine, theirs(tuned) as peer:
        # Of fresh processes, so that the peaks are those of this one kind of step.
        first = peer.step(*KINDS[0], "sdpa"), mine.step(*KINDS[0], "fused")
        peaks = Figure(first[1].peak / first[0].peak, note=_peaks(first, allocator))
        found["train_peak_over_speculators_xpress_64" + suffix] = peaks
        for model, anchors in KINDS:
            if model not in attentions:
                attentions[model] = better_attention(peer, model, anchors) if tuned else "sdpa"
            steps = take_turns(mine, peer, model, anchors, attentions[model], rounds)
            seconds = [[step.seconds for step in side] for side in steps]
            note = f"{allocator}; theirs with {attentions[model]}"
            key = f"train_rate_over_speculators_{model}_{anchors}{suffix}"
            found[key] = common.ratio(seconds[1], seconds[0], note)
    return found


def _peaks(first: tuple[Step, Step], allocator: str) -> str:
    theirs_gb, ours_gb = (step.peak / 1e9 for step in first)
    return f"{ours_gb:.2f} GB against {theirs_gb:.2f} GB in the first step; {allocator}"


def figures(quick: bool) -> dict[str, Figure]:
    found = compare(tuned=True, rounds=1 if quick else 5)
    return found if quick else found | compare(tuned=False, rounds=2)


if __name__ == "__main__":
    common.main(figures)
