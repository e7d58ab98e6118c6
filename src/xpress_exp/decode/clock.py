"""Time between points of the work, without stopping a device for it."""

from __future__ import annotations

import time
from typing import Any

import torch


class Clock:
    """Marks in the stream of work of `device`: events on CUDA, the wall clock elsewhere.

    A mark never waits; `between` waits for the later one.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"

    def mark(self) -> Any:
        """A point after all work queued so far."""
        if not self._cuda:
            return time.perf_counter() * 1000.0
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, first: Any, second: Any) -> float:
        """Milliseconds from one mark to a later one."""
        if not self._cuda:
            return second - first
        second.synchronize()
        return first.elapsed_time(second)
