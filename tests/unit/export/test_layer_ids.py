"""Layer ids between countings, against the tuple that Transformers returns."""

from __future__ import annotations

import pytest
import torch

from xpress_exp.export import convert_layer_ids
from xpress_exp.target import tiny_target


def test_published_pairs() -> None:
    """z-lab's Qwen3-8B drafter and the same one as speculators converts it."""
    ours, auxiliary = [1, 9, 17, 25, 33], [2, 10, 18, 26, 34]
    assert convert_layer_ids(ours, "output_of", "hidden_state") == auxiliary
    assert convert_layer_ids(auxiliary, "hidden_state", "output_of") == ours
    assert convert_layer_ids(ours, "output_of", "output_of") == ours


@pytest.mark.parametrize(("ids", "counted"), [([0, 2], "hidden_state"), ([-1, 2], "output_of")])
def test_the_embedding_is_no_layer(ids: list[int], counted: str) -> None:
    with pytest.raises(ValueError, match="means the embedding"):
        convert_layer_ids(ids, counted, "output_of")  # type: ignore[arg-type]


def test_the_index_finds_the_captured_features() -> None:
    target = tiny_target("qwen3", layer_ids=(0, 1))
    ids = torch.tensor([[5, 9, 4]])
    hidden = target._model(ids, output_hidden_states=True).hidden_states
    expected = [hidden[i] for i in convert_layer_ids((0, 1), "output_of", "hidden_state")]
    torch.testing.assert_close(target.forward(ids).features, torch.cat(expected, -1))
