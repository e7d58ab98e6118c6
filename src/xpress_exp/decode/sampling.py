"""Drawing one token, and random streams that do not depend on the order of decoding."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def sample_token(logits: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    """Next token from raw logits [b, V]: argmax at temperature 0, else a draw from
    softmax(logits / temperature) in float32. Returns int64 [b]."""
    if temperature == 0:
        return logits.argmax(-1)
    law = torch.softmax(logits.float() / temperature, -1)
    return torch.multinomial(law, 1, generator=generator).squeeze(-1)


def random_stream(device: torch.device, *key: object) -> torch.Generator:
    """Generator on `device` seeded by a hash of `key`, so that a prompt's draws are the same
    whatever was decoded before it. Keys of different parts or order give different streams."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    generator = torch.Generator(device=device)
    # 63 bits: the largest seed that every torch version takes as a signed integer.
    generator.manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return generator
