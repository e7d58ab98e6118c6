"""Drawing one token, and random streams that do not depend on the order of decoding."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from xpress_exp.law import ALL_TOKENS, Truncation, probabilities, processed
from xpress_exp.readout import argmax
from xpress_exp.types import Randomness


def sample_token(
    logits: Tensor,
    temperature: float,
    generator: Randomness,
    truncation: Truncation = ALL_TOKENS,
) -> Tensor:
    """Next token from raw logits [b, V]: argmax at temperature 0, else a draw from their law in
    float32 or wider; from a noise source it is the argmax under its noise. Returns int64 [b]."""
    if temperature == 0:
        return argmax(logits)
    if generator is None or isinstance(generator, torch.Generator):
        law = probabilities(logits, temperature, truncation)
        return torch.multinomial(law, 1, generator=generator).squeeze(-1)
    scores = processed(logits, temperature, truncation)[:, None]
    return (scores + generator.gumbel(scores, None)).argmax(-1)[:, 0]


def random_stream(device: torch.device, *key: object) -> torch.Generator:
    """Generator on `device` seeded by a hash of `key`, so that a prompt's draws are the same
    whatever was decoded before it. Keys of different parts or order give different streams."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    generator = torch.Generator(device=device)
    # 63 bits: the largest seed that every torch version takes as a signed integer.
    generator.manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return generator
