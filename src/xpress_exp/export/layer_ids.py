"""Layer ids as checkpoints count them; every conversion goes through here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from xpress_exp.target.layer_ids import hidden_state_index

Counting = Literal["output_of", "hidden_state"]


def convert_layer_ids(ids: Sequence[int], counted: Counting, wanted: Counting) -> list[int]:
    """The same layers in another counting.

    'output_of': id i is the output of layer i, from 0 (z-lab, DeepSpec, Domino and this package).
    'hidden_state': the index in Transformers' `hidden_states`, i + 1 (speculators and vLLM's
    auxiliary ids). Raises ValueError for an id that is no layer's output, such as the embedding.
    """
    shift = hidden_state_index(0)
    outputs = [i if counted == "output_of" else i - shift for i in ids]
    for given, layer in zip(ids, outputs, strict=True):
        if layer < 0:
            raise ValueError(f"layer id {given} means the embedding, which is no feature here")
    return outputs if wanted == "output_of" else [hidden_state_index(i) for i in outputs]
