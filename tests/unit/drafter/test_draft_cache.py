"""DraftCache against plain concatenation."""

from __future__ import annotations

import pytest
import torch

from xpress_exp.drafter import DraftCache


@pytest.mark.property("P11d")
@pytest.mark.parametrize("chunks", [[1, 1, 1, 1], [5, 1, 3], [1, 9, 2, 20], [7]])
def test_growth_equals_concatenation(chunks: list[int]) -> None:
    torch.manual_seed(0)
    cache, kept = DraftCache(), []
    for count in chunks:
        new = [(torch.randn(2, 3, count, 4), torch.randn(2, 3, count, 4)) for _ in range(2)]
        kept.append(new)
        cache.append(new)
        assert cache.length == sum(item[0][0].shape[2] for item in kept)
        for layer, (keys, values) in enumerate(cache.layers):
            assert torch.equal(keys, torch.cat([item[layer][0] for item in kept], 2))
            assert torch.equal(values, torch.cat([item[layer][1] for item in kept], 2))


def test_storage_is_reused_until_full() -> None:
    cache = DraftCache()
    cache.append([(torch.ones(1, 1, 4, 2), torch.ones(1, 1, 4, 2))])
    address = cache.layers[0][0].data_ptr()
    for _ in range(4):  # capacity is twice the first four tokens
        cache.append([(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2))])
    assert cache.layers[0][0].data_ptr() == address
    cache.append([(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2))])
    assert cache.layers[0][0].data_ptr() != address
    assert cache.length == 9
