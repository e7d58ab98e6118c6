"""The absent head as an object: the bare drafter (dFlash)."""

from __future__ import annotations

import torch
from torch import Tensor

from xpress_exp.head.contract import CorrectionHead, Dependence
from xpress_exp.types import ModelDims


class NoHead(CorrectionHead):
    """Codes of width 0: corrected logits are the base logits themselves. No parameters.

    `rank` is accepted and has no effect, so that one grid over ranks can hold the fair control.
    """

    dependence = Dependence(tokens="none", hidden="none")

    def __init__(
        self,
        dims: ModelDims,
        token_embedding: Tensor,
        rank: int | None = None,  # noqa: ARG002
    ) -> None:
        super().__init__(dims)
        empty = torch.zeros(dims.draft_vocab_size, 0, device=token_embedding.device)
        self.register_buffer("readout", empty, persistent=False)

    def code(self, hidden: Tensor, previous_tokens: Tensor) -> Tensor:
        """hidden [n, P, H], previous_tokens [n, P] -> z [n, P, 0]."""
        return hidden.new_zeros(*previous_tokens.shape, 0)
