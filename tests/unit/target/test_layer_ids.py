"""The layer-id convention of z-lab: id i is hidden_states[i + 1], never the last layer."""

from __future__ import annotations

import pytest

from xpress_exp.target import check_layer_ids, default_layer_ids, hidden_state_index


@pytest.mark.parametrize(
    ("num_layers", "num_features", "expected"),
    [(36, 5, (1, 9, 17, 25, 33)), (36, 1, (18,)), (30, 3, (1, 14, 27)), (28, 2, (1, 25))],
)
def test_default_ids_are_the_published_ones(
    num_layers: int, num_features: int, expected: tuple[int, ...]
) -> None:
    assert default_layer_ids(num_layers, num_features) == expected
    check_layer_ids(expected, num_layers)


def test_index_skips_the_embedding() -> None:
    assert [hidden_state_index(layer) for layer in (0, 1, 33)] == [1, 2, 34]


@pytest.mark.parametrize("ids", [[2], [0, 2], [3], [-1], [], [1, 1]])
def test_last_layer_and_bad_lists_are_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match=r"drafter\.target_layer_ids"):
        check_layer_ids(ids, 3)
