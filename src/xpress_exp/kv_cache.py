"""Preallocated keys and values of several sequences, each with a length of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

KeyValue = tuple[Tensor, Tensor]
FIRST_CAPACITY = 256


class KVCache:
    """Per layer, keys and values [b, kv_heads, capacity, head_dim], of which row i has `lengths[i]`
    valid tokens.

    Lengths live on the host: after a round it knows them anyway, and a forward then needs no
    synchronisation. Capacity doubles when needed; `reserve` more at once to allocate only once.
    """

    def __init__(
        self,
        num_layers: int,
        batch: int,
        num_kv_heads: int,
        head_dim: int,
        like: Tensor,
        capacity: int = FIRST_CAPACITY,
    ) -> None:
        """like: a tensor of the device and dtype wanted."""
        self.lengths = [0] * batch
        shape = (num_layers, 2, batch, num_kv_heads, capacity, head_dim)
        # Zeros, not empty: a masked position may hold no nan, since 0 x nan is nan.
        self._storage = like.new_zeros(shape)

    @property
    def length(self) -> int:
        """Number of cached tokens when all rows have the same; raises ValueError otherwise."""
        if len(set(self.lengths)) != 1:
            raise ValueError(f"rows hold {self.lengths} tokens; ask for lengths")
        return self.lengths[0]

    @property
    def capacity(self) -> int:
        return self._storage.shape[4]

    @property
    def device(self) -> torch.device:
        return self._storage.device

    def ensure(self, capacity: int) -> None:
        """Make room for `capacity` tokens per row."""
        if capacity <= self.capacity:
            return
        grown = self._storage.new_zeros(
            *self._storage.shape[:4], max(capacity, 2 * self.capacity), self._storage.shape[5]
        )
        used = max(self.lengths)
        grown[:, :, :, :, :used] = self._storage[:, :, :, :, :used]
        self._storage = grown

    def reserve(self, count: int) -> Room:
        """Room for `count` more tokens in every row, behind its valid ones."""
        self.ensure(max(self.lengths) + count)
        return Room(self, count)

    def advance(self, counts: int | Sequence[int]) -> None:
        """Declare the next `counts` tokens (of every row, or one number a row) valid."""
        each = [counts] * len(self.lengths) if isinstance(counts, int) else counts
        self.lengths = [length + count for length, count in zip(self.lengths, each, strict=True)]

    def crop(self, lengths: int | Sequence[int]) -> None:
        """Keep the first `lengths` tokens; raises ValueError when a row has fewer."""
        wanted = [lengths] * len(self.lengths) if isinstance(lengths, int) else list(lengths)
        for length, held in zip(wanted, self.lengths, strict=True):
            if length > held:
                raise ValueError(f"cannot crop a cache of {held} tokens to {length}")
        self.lengths = wanted

    def row(self, index: int) -> KVCache:
        """A view of one row: what is written through it, this cache holds. Its length is its own,
        and so is any growth: `ensure` the capacity before."""
        view = object.__new__(KVCache)
        view.lengths = [self.lengths[index]]
        view._storage = self._storage[:, :, index : index + 1]
        return view

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the given rows, in this order."""
        self._storage = self._storage[:, :, list(rows)]
        self.lengths = [self.lengths[row] for row in rows]

    def layer(self, index: int) -> KeyValue:
        """Storage of one layer: keys and values [b, kv_heads, capacity, head_dim]."""
        return self._storage[index, 0], self._storage[index, 1]


class Room:
    """Places of `count` new tokens per row behind the valid ones; use it before the cache changes.

    positions int64 [b, count] (one row when all rows start alike); span: tokens that attention has
    to look at, of the longest row.
    """

    def __init__(self, cache: KVCache, count: int) -> None:
        self._cache = cache
        self.starts = list(cache.lengths)
        self.count = count
        self.ragged = len(set(self.starts)) > 1
        self.span = max(self.starts) + count
        steps = torch.arange(count, device=cache.device)
        if self.ragged:
            begins = torch.tensor(self.starts, device=cache.device)
            self.positions = begins[:, None] + steps
        else:
            self.positions = (steps + self.starts[0])[None]

    def write(self, layer: int, key: Tensor, value: Tensor) -> KeyValue:
        """Store key and value [b, kv_heads, count, head_dim] of the new tokens; returns those of
        all tokens up to them, [b, kv_heads, span, head_dim]."""
        keys, values = self._cache.layer(layer)
        if self.ragged:
            rows = torch.arange(len(self.starts), device=key.device)[:, None]
            # Tokens lead after the two index tensors: [b, count, kv_heads, head_dim].
            keys[rows, :, self.positions] = key.transpose(1, 2)
            values[rows, :, self.positions] = value.transpose(1, 2)
        else:
            place = slice(self.starts[0], self.span)
            keys[:, :, place] = key
            values[:, :, place] = value
        return keys[:, :, : self.span], values[:, :, : self.span]

    def causal_mask(self) -> Tensor | None:
        """What each new token may see, bool [b or 1, 1, count, span]; None when everything."""
        if self.count == 1 and not self.ragged:
            return None
        return _seen_until(self.span, self.positions)[:, None]

    def block_mask(self) -> Tensor | None:
        """What all new tokens may see when they see each other, bool [b, 1, 1, span]; None when
        everything."""
        if not self.ragged:
            return None
        return _seen_until(self.span, self.positions[:, -1:])[:, None]


def _seen_until(span: int, positions: Tensor) -> Tensor:
    """bool [b, q, span]: keys at or before each position [b, q]."""
    return torch.arange(span, device=positions.device) <= positions[..., None]


class FixedRoom:
    """`Room` for captured graphs: shapes depend on the cache's capacity alone, places on tensors.

    starts int64 [b]: valid tokens of each row. Attention spans the whole capacity under a mask;
    the caller keeps starts + count within it and advances the cache.
    """

    def __init__(self, cache: KVCache, starts: Tensor, count: int) -> None:
        self._cache = cache
        self.count = count
        self.span = cache.capacity
        self.positions = starts[:, None] + torch.arange(count, device=starts.device)

    def write(self, layer: int, key: Tensor, value: Tensor) -> KeyValue:
        """See `Room.write`; returns the whole storage, [b, kv_heads, capacity, head_dim]."""
        keys, values = self._cache.layer(layer)
        rows = torch.arange(len(self.positions), device=key.device)[:, None]
        keys[rows, :, self.positions] = key.transpose(1, 2)
        values[rows, :, self.positions] = value.transpose(1, 2)
        return keys, values

    def causal_mask(self) -> Tensor:
        """See `Room.causal_mask`: bool [b, 1, count, capacity]."""
        return _seen_until(self.span, self.positions)[:, None]

    def block_mask(self) -> Tensor:
        """See `Room.block_mask`: bool [b, 1, 1, capacity]."""
        return _seen_until(self.span, self.positions[:, -1:])[:, None]
