"""Context keys and values of the drafter: only verified tokens enter, so nothing is cropped."""

from __future__ import annotations

from torch import Tensor

KeyValue = tuple[Tensor, Tensor]


class DraftCache:
    """Per layer, keys and values [b, kv_heads, capacity, head_dim], of which `length` are valid.

    Capacity doubles when needed, so that a round copies only its own tokens.
    """

    def __init__(self) -> None:
        self.length = 0
        self._storage: list[KeyValue] = []

    def append(self, new: list[KeyValue]) -> None:
        """Add context tokens: `new` has a (key, value) pair [b, kv_heads, c, head_dim] a layer."""
        count = new[0][0].shape[2]
        end = self.length + count
        capacity = self._storage[0][0].shape[2] if self._storage else 0
        if end > capacity:
            self._storage = [
                (self._grown(key, index, 0, 2 * end), self._grown(value, index, 1, 2 * end))
                for index, (key, value) in enumerate(new)
            ]
        for (keys, values), (key, value) in zip(self._storage, new, strict=True):
            keys[:, :, self.length : end] = key
            values[:, :, self.length : end] = value
        self.length = end

    def _grown(self, like: Tensor, layer: int, part: int, capacity: int) -> Tensor:
        grown = like.new_zeros(*like.shape[:2], capacity, like.shape[3])
        if self._storage:
            grown[:, :, : self.length] = self._storage[layer][part][:, :, : self.length]
        return grown

    @property
    def layers(self) -> list[KeyValue]:
        """Valid keys and values of every layer, [b, kv_heads, length, head_dim]."""
        return [(k[:, :, : self.length], v[:, :, : self.length]) for k, v in self._storage]
