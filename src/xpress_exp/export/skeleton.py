"""Names and shapes that a description asks for, found by building it without weights."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from hydra.utils import get_object
from torch import Tensor

from xpress_exp.drafter import DFlashDrafter
from xpress_exp.export.content import Content
from xpress_exp.head import CorrectionHead, GRUHead, MarkovHead, NoHead, XPressHead
from xpress_exp.types import ModelDims

HEADS: dict[str, type[CorrectionHead]] = {
    "none": NoHead,
    "markov": MarkovHead,
    "gru": GRUHead,
    "xpress": XPressHead,
}
# A folder may name a head of the reader's own, but nothing outside this package.
HEAD_MODULES = "xpress_exp.head."
LAYER_KEYS = (
    "num_layers",
    "intermediate_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "mask_token_id",
)
LABELS = ("name", "_target_")


def make_drafter(
    content: Content, dims: ModelDims, embedding: Tensor, inv_freq: Tensor, scale: float
) -> DFlashDrafter:
    """The drafter of a description with fresh weights; embedding [V, H] and rotary embedding are
    the target's."""
    layers = {key: content.drafter[key] for key in LAYER_KEYS}
    feature_size = len(content.drafter["target_layer_ids"]) * dims.hidden_size
    return DFlashDrafter(dims, feature_size, embedding, inv_freq, scale, **layers)


def make_head(head: Mapping[str, Any], dims: ModelDims, embedding: Tensor) -> CorrectionHead:
    """The head of a description with fresh weights. Raises ValueError when there is no such head
    or it does not take the options."""
    kind = _head_class(head)
    options = {key: value for key, value in head.items() if key not in LABELS}
    if "token_init" in inspect.signature(kind).parameters:
        # Replaced by the stored weights at once; 'target' would cost a factorisation.
        options["token_init"] = "random"
    try:
        return kind(dims=dims, token_embedding=embedding, **options)  # type: ignore[call-arg]
    except TypeError as error:
        raise ValueError(f"head.name={head['name']} cannot be built: {error}") from error


def _head_class(head: Mapping[str, Any]) -> type[CorrectionHead]:
    target = str(head.get("_target_", ""))
    if head.get("name") in HEADS:
        return HEADS[head["name"]]
    if target.startswith(HEAD_MODULES):
        found = get_object(target)
        if inspect.isclass(found) and issubclass(found, CorrectionHead):
            return found
    raise ValueError(f"head.name={head.get('name')} ({target or 'no class'}) is no head here")


def expected_shapes(content: Content) -> dict[str, torch.Size]:
    """Shape of every tensor of the description, by our names; nothing is allocated.

    content.target must tell hidden_size and vocab_size.
    """
    hidden, vocab = content.target.hidden_size, content.target.vocab_size
    assert hidden is not None and vocab is not None
    drafted = vocab if content.vocab_ids is None else len(content.vocab_ids)
    dims = ModelDims(hidden, vocab, drafted, content.slots)
    with torch.device("meta"):
        embedding = torch.empty(vocab, hidden)
        inv_freq = torch.empty(content.drafter["head_dim"] // 2)
        parts = {
            "drafter": make_drafter(content, dims, embedding, inv_freq, 1.0),
            "head": make_head(content.head, dims, embedding),
        }
    return {
        f"{part}.{name}": tensor.shape
        for part, module in parts.items()
        for name, tensor in module.state_dict().items()
    }
