"""Every kind of head, small and random."""

from __future__ import annotations

from typing import Any

import torch

from xpress_exp.head import CorrectionHead, GRUHead, MarkovHead, NoHead, XPressHead
from xpress_exp.types import ModelDims

HEADS: dict[str, tuple[type, dict[str, Any]]] = {
    "none": (NoHead, {}),
    "vanilla": (MarkovHead, {"rank": 3}),
    "gated": (MarkovHead, {"rank": 3, "variant": "gated"}),
    "rnn": (MarkovHead, {"rank": 3, "variant": "rnn"}),
    "gru": (GRUHead, {"rank": 3, "gru_hidden_size": 4}),
    "xpress": (XPressHead, {"rank": 3}),
    "predecessor": (XPressHead, {"rank": 3, "mlp": "silu", "anchor_prev": "predecessor"}),
}


def make_head(name: str, case: Any, noise: float = 0.5) -> CorrectionHead:
    kind, settings = HEADS[name]
    columns = len(case.lm_head if case.vocab_ids is None else case.vocab_ids)
    dims = ModelDims(case.hidden.shape[2], len(case.lm_head), columns, case.slots)
    torch.manual_seed(4)
    head = kind(dims, case.lm_head.detach(), **settings).double()
    if noise:
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.normal_(std=noise)
    return head
