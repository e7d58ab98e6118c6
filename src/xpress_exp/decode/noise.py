"""Noise that belongs to a place in the text, not to an order of draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from xpress_exp.decode.sampling import random_stream
from xpress_exp.solver.gumbel import gumbel, gumbel_like
from xpress_exp.types import Randomness


class PositionNoise:
    """Gumbel noise [vocab_size] for every absolute position of one sequence: a pure function of
    key and position, whoever asks, how often and in which order.

    Other keys give independent noise. Only devices of one kind give the same noise for a key.
    """

    def __init__(self, device: torch.device, vocab_size: int, *key: object) -> None:
        self.device = device
        self.vocab_size = vocab_size
        self.key = key
        self._rows: dict[int, Tensor] = {}

    def row(self, position: int) -> Tensor:
        """Noise of the token at `position` (the prompt's first token is at 0), float32 [V]."""
        if position not in self._rows:
            stream = random_stream(self.device, *self.key, position)
            like = torch.empty(self.vocab_size, device=self.device)
            self._rows[position] = gumbel_like(like, stream)
        return self._rows[position]

    def at(self, position: int) -> BlockNoise:
        """The noise of a block whose first token lands at `position`."""
        # Decoding never goes back, and a row that was dropped would only be drawn again, alike.
        self._rows = {place: row for place, row in self._rows.items() if place >= position}
        return BlockNoise(self, position)


@dataclass(frozen=True)
class BlockNoise:
    """Position-keyed noise of one block; every question gets the same answer."""

    noise: PositionNoise
    position: int

    def gumbel(self, logits: Tensor, vocab_ids: Tensor | None) -> Tensor:
        """See `types.NoiseSource`. Raises ValueError for more than one row: every sequence has
        noise of its own."""
        if logits.shape[0] != 1:
            raise ValueError(f"position-keyed noise is one sequence's; got {logits.shape[0]} rows")
        table = torch.stack([self.noise.row(self.position + k) for k in range(logits.shape[1])])
        return table[None] if vocab_ids is None else table[None, :, vocab_ids]


# What a whole decoding draws from; None is torch's global generator.
Draws = torch.Generator | PositionNoise | None


def at_position(source: Draws, position: int) -> Randomness:
    """What a block whose first token lands at `position` draws from."""
    return source.at(position) if isinstance(source, PositionNoise) else source


class RowNoise:
    """Noise of several sequences at once; each row draws from its own source, as if alone.

    positions: where the first token of each row's block lands.
    """

    def __init__(self, sources: Sequence[Draws], positions: Sequence[int]) -> None:
        self._sources = [
            at_position(source, position)
            for source, position in zip(sources, positions, strict=True)
        ]

    def gumbel(self, logits: Tensor, vocab_ids: Tensor | None) -> Tensor:
        """See `types.NoiseSource`; row i of logits [b, n, V'] draws from source i."""
        rows = [
            gumbel(logits[index : index + 1], vocab_ids, source)
            for index, source in enumerate(self._sources)
        ]
        return torch.cat(rows)
