"""One training document and the two ways to obtain it: with cached features, or tokens only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from xpress_exp.data.response import ResponseSet


@dataclass(frozen=True)
class Document:
    """input_ids int64 [T], loss_mask bool [T] (True where the target generated the token),
    features [T, F] and last_hidden [T, H] in the stored dtype, or None when computed online."""

    input_ids: Tensor
    loss_mask: Tensor
    features: Tensor | None = None
    last_hidden: Tensor | None = None


class DocumentStore(Protocol):
    """Documents in the order of their responses."""

    def __len__(self) -> int: ...

    def document(self, index: int) -> Document: ...


class ResponseDocuments:
    """Documents without features, straight from the responses (features.mode=online)."""

    def __init__(self, responses: ResponseSet) -> None:
        self._responses = responses.responses

    def __len__(self) -> int:
        return len(self._responses)

    def document(self, index: int) -> Document:
        response = self._responses[index]
        return Document(
            input_ids=torch.from_numpy(response.input_ids).long(),
            loss_mask=torch.from_numpy(response.loss_mask),
        )
