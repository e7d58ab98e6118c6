"""KVCache against plain concatenation, row by row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from xpress_exp.kv_cache import FixedRoom, KVCache

LAYERS, HEADS, DIM = 2, 3, 4


def make(batch: int, capacity: int = 4) -> KVCache:
    return KVCache(LAYERS, batch, HEADS, DIM, torch.zeros(1), capacity)


def draw(batch: int, count: int) -> list[tuple[Tensor, Tensor]]:
    shape = (2, LAYERS, batch, HEADS, count, DIM)
    keys, values = torch.randn(shape).unbind(0)
    return list(zip(keys, values, strict=True))


@pytest.mark.property("P11d")
@pytest.mark.parametrize("chunks", [[1, 1, 1, 1], [5, 1, 3], [1, 9, 2, 20], [7]])
def test_growth_equals_concatenation(chunks: list[int]) -> None:
    torch.manual_seed(0)
    cache, kept = make(2), []
    for count in chunks:
        new = draw(2, count)
        kept.append(new)
        room = cache.reserve(count)
        for layer, (key, value) in enumerate(new):
            keys, values = room.write(layer, key, value)
            assert torch.equal(keys, torch.cat([item[layer][0] for item in kept], 2))
            assert torch.equal(values, torch.cat([item[layer][1] for item in kept], 2))
        cache.advance(count)
        assert cache.length == sum(item[0][0].shape[2] for item in kept)


def test_rows_keep_what_they_accepted() -> None:
    """Three rows that accept different counts, as a naive list per row has it."""
    torch.manual_seed(0)
    cache = make(3)
    naive: list[list[Tensor]] = [[], [], []]
    for counts in ([4, 4, 4], [1, 3, 0], [2, 2, 2], [0, 1, 4]):
        new = draw(3, 4)
        room = cache.reserve(4)
        starts = [len(row) for row in naive]
        expected = [[s + k for k in range(4)] for s in starts]
        assert room.positions.expand(3, -1).tolist() == expected
        for layer, pair in enumerate(new):
            keys, _ = room.write(layer, *pair)
        cache.advance(counts)
        for row, count in enumerate(counts):
            naive[row] += list(new[LAYERS - 1][0][row].transpose(0, 1)[:count])
            assert cache.lengths[row] == len(naive[row])
            if naive[row]:
                held = cache.layer(LAYERS - 1)[0][row, :, : len(naive[row])]
                assert torch.equal(held, torch.stack(naive[row], 1))
        assert keys.shape[2] == max(starts) + 4


def test_masks_by_a_loop() -> None:
    cache = make(2)
    cache.reserve(5)
    cache.advance([5, 2])
    room = cache.reserve(3)
    causal, block = room.causal_mask(), room.block_mask()
    assert causal is not None and block is not None
    assert causal.shape == (2, 1, 3, 8) and block.shape == (2, 1, 1, 8)
    for row, start in enumerate((5, 2)):
        for key in range(8):
            assert bool(block[row, 0, 0, key]) == (key < start + 3)
            for query in range(3):
                assert bool(causal[row, 0, query, key]) == (key <= start + query)
    even = make(2)
    assert even.reserve(1).causal_mask() is None and even.reserve(3).block_mask() is None
    mask = even.reserve(3).causal_mask()
    assert mask is not None and torch.equal(mask[0, 0], torch.ones(3, 3).tril().bool())


def test_fixed_room_equals_room() -> None:
    """Where both look, they hold and see the same."""
    torch.manual_seed(0)
    plain, fixed = make(2, capacity=16), make(2, capacity=16)
    for counts in ([3, 3], [1, 3], [2, 0]):
        new = draw(2, 3)
        room = plain.reserve(3)
        other = FixedRoom(fixed, torch.tensor(plain.lengths), 3)
        assert other.positions.tolist() == room.positions.expand(2, -1).tolist()
        for layer, pair in enumerate(new):
            near, far = room.write(layer, *pair), other.write(layer, *pair)
            for mine, theirs in zip(near, far, strict=True):
                assert torch.equal(mine, theirs[:, :, : room.span])
        causal = room.causal_mask()
        assert causal is not None
        seen = other.causal_mask()
        assert torch.equal(seen[..., : room.span], causal.expand(2, -1, -1, -1))
        assert not seen[..., room.span :].any()
        block = room.block_mask()
        if block is not None:
            assert torch.equal(other.block_mask()[..., : room.span], block)
        plain.advance(counts)


def test_storage_is_reused_until_full() -> None:
    cache = make(1, capacity=8)
    address = cache.layer(0)[0].data_ptr()
    for _ in range(8):
        cache.reserve(1)
        cache.advance(1)
    assert cache.layer(0)[0].data_ptr() == address
    cache.reserve(1)
    assert cache.layer(0)[0].data_ptr() != address and cache.capacity == 16


def test_row_view_writes_through_and_selection_keeps_rows() -> None:
    torch.manual_seed(0)
    cache = make(3, capacity=8)
    view = cache.row(1)
    new = draw(1, 3)
    room = view.reserve(3)
    for layer, pair in enumerate(new):
        room.write(layer, *pair)
    cache.lengths[1] = 3
    assert torch.equal(cache.layer(1)[0][1, :, :3], new[1][0][0])
    cache.select([1])
    assert cache.lengths == [3]
    assert torch.equal(cache.layer(1)[1][0, :, :3], new[1][1][0])


def test_cropping_more_than_held_is_refused() -> None:
    cache = make(2)
    cache.reserve(3)
    cache.advance([3, 1])
    with pytest.raises(ValueError, match="cannot crop a cache of 1 tokens to 2"):
        cache.crop(2)
    with pytest.raises(ValueError, match="ask for lengths"):
        _ = cache.length
    cache.crop([2, 1])
    assert cache.lengths == [2, 1]
