"""The one owner of the layer-id convention.

Layer id i (0-based) means the output of decoder layer i, which Transformers lists as
`hidden_states[i + 1]` (index 0 is the embedding). vLLM's auxiliary ids are i + 1 as well.
"""

from __future__ import annotations

from collections.abc import Sequence


def hidden_state_index(layer_id: int) -> int:
    """Index of a layer's output in Transformers' `hidden_states` tuple."""
    return layer_id + 1


def default_layer_ids(num_layers: int, num_features: int) -> tuple[int, ...]:
    """Evenly spaced feature layers from layer 1 to num_layers-3 (dFlash), or the middle one."""
    if num_features == 1:
        return (num_layers // 2,)
    step = (num_layers - 4) / (num_features - 1)
    return tuple(round(1 + index * step) for index in range(num_features))


def check_layer_ids(layer_ids: Sequence[int], num_layers: int) -> None:
    """Raise ValueError for ids that cannot serve as features.

    The last layer is refused: Transformers lists it after the final norm, a hook sees it before.
    """
    for layer_id in layer_ids:
        if not 0 <= layer_id < num_layers - 1:
            raise ValueError(
                f"drafter.target_layer_ids contains {layer_id}, but features must come from "
                f"layers 0..{num_layers - 2} of this {num_layers}-layer target"
            )
    if not layer_ids or len(set(layer_ids)) != len(layer_ids):
        raise ValueError(
            f"drafter.target_layer_ids={list(layer_ids)} must be non-empty and distinct"
        )
