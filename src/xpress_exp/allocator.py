"""glibc's memory allocator, set for tensors."""

from __future__ import annotations

import contextlib
import ctypes

# Option numbers of mallopt(3).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> None:
    """Let the process keep freed memory. By default glibc returns large blocks to the system and
    faults them in again at the next tensor, which makes CPU passes over many tokens 2 to 5 times
    slower. Does nothing on other C libraries."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_MMAP_MAX, 0)
        libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(_TOP_PAD, 256 * 2**20)
