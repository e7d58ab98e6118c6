"""Domino's recurrent head: a GRU over the target's embeddings of the drafted prefix
(arXiv 2605.29707)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xpress_exp.few_rows import LayoutChoice
from xpress_exp.head.contract import CorrectionHead, Dependence, zero_readout
from xpress_exp.types import ModelDims


class GRUHead(CorrectionHead):
    """z_k = SiLU(W_mid [h_k ; G_k]), G_k = GRU state after x_0..x_{k-1}; bias-free.

    The first `pure_draft_prefix_len` drafted tokens, and the anchor's own slot of `fill_in`, are
    not corrected (z = 0); that slot's previous token never enters the GRU. The target's embedding
    table is read but is neither a parameter nor part of the state dict.
    Raises ValueError when no slot would be corrected or rank < 1.
    """

    dependence = Dependence(tokens="prefix", hidden="own")
    token_embedding: Tensor

    def __init__(
        self,
        dims: ModelDims,
        token_embedding: Tensor,
        rank: int,
        gru_hidden_size: int,
        pure_draft_prefix_len: int = 1,
    ) -> None:
        super().__init__(dims)
        if not 0 <= pure_draft_prefix_len < dims.slots.num_draft_tokens:
            raise ValueError(
                f"head.pure_draft_prefix_len={pure_draft_prefix_len} must be in "
                f"0..{dims.slots.num_draft_tokens - 1} so that a drafted token is corrected"
            )
        self.suffix_start = pure_draft_prefix_len + dims.slots.first_slot
        self.register_buffer("token_embedding", token_embedding.detach(), persistent=False)
        self.prefix_gru = nn.GRU(dims.hidden_size, gru_hidden_size, bias=False, batch_first=True)
        self.gru_hidden_size = gru_hidden_size
        # The GRU's two matrices outside of it: a captured graph cannot touch an nn.GRU.
        self._step_weights: tuple[Tensor, Tensor] | None = None
        self.mid_proj = nn.Linear(dims.hidden_size + gru_hidden_size, rank, bias=False)
        self.readout = zero_readout(dims, rank)

    def code(self, hidden: Tensor, previous_tokens: Tensor) -> Tensor:
        """hidden [n, P, H], previous_tokens [n, P] -> z [n, P, r]."""
        return self.code_from(self.prepare(hidden), previous_tokens)

    def prepare(self, hidden: Tensor) -> Tensor:
        """The hidden states' share of W_mid [h ; G]: [n, P, r]."""
        return F.linear(hidden, self.mid_proj.weight[:, : self.dims.hidden_size])

    def code_from(self, prepared: Tensor, previous_tokens: Tensor) -> Tensor:
        """prepared [n, P, r], previous_tokens [n, P] -> z [n, P, r]."""
        first, start = self.dims.slots.first_slot, self.suffix_start
        states = self._states(self._embed(previous_tokens[:, first:]))
        z = self._activate(prepared[:, start:], states[:, start - first :])
        return F.pad(z, (0, 0, start, 0))

    def make_fast(self, choice: LayoutChoice) -> None:
        """Also let captured graphs read the GRU."""
        super().make_fast(choice)
        self._step_weights = self._matrices()

    def init_state(self, prepared: Tensor) -> tuple[Tensor, Tensor]:
        """(prepared, GRU state 0 [1, n, gru_hidden_size])."""
        return prepared, prepared.new_zeros(1, prepared.shape[0], self.gru_hidden_size)

    def step(
        self, state: tuple[Tensor, Tensor], slot: int, previous_token: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Carries the GRU state: previous_token [n] -> z [n, r]."""
        prepared, recurrent = state
        if slot >= self.dims.slots.first_slot:
            recurrent = self._advance(self._embed(previous_token), recurrent[0])[None]
        if slot < self.suffix_start:
            return torch.zeros_like(prepared[:, slot]), (prepared, recurrent)
        return self._activate(prepared[:, slot], recurrent[0]), (prepared, recurrent)

    def _states(self, inputs: Tensor) -> Tensor:
        """GRU states after each input [n, t, H]: [n, t, gru_hidden_size]."""
        if not torch.compiler.is_compiling():
            return self.prefix_gru(inputs)[0]
        # A captured graph cannot hold an nn.GRU, but its steps.
        state = inputs.new_zeros(len(inputs), self.gru_hidden_size)
        states = []
        for place in range(inputs.shape[1]):
            state = self._advance(inputs[:, place], state)
            states.append(state)
        return torch.stack(states, 1)

    def _advance(self, inputs: Tensor, state: Tensor) -> Tensor:
        """One step: inputs [n, H], state [n, gru_hidden_size] -> next state."""
        from_input, from_state = self._step_weights or self._matrices()
        return torch.gru_cell(inputs, state, from_input, from_state)

    def _matrices(self) -> tuple[Tensor, Tensor]:
        return self.prefix_gru.weight_ih_l0, self.prefix_gru.weight_hh_l0  # type: ignore

    def _embed(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.token_embedding).to(self.mid_proj.weight.dtype)

    def _activate(self, prepared: Tensor, recurrent: Tensor) -> Tensor:
        weight = self.mid_proj.weight[:, self.dims.hidden_size :]
        return F.silu(prepared + F.linear(recurrent, weight))
