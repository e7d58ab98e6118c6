"""DSpark's Markov heads: vanilla, gated and rnn (arXiv 2607.05147)."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xpress_exp.head.contract import (
    CorrectionHead,
    Dependence,
    check_choice,
    init_normal,
    zero_readout,
)
from xpress_exp.head.token_table import TokenInit, token_table
from xpress_exp.types import ModelDims

Variant = Literal["vanilla", "gated", "rnn"]
DEPENDENCE = {
    "vanilla": Dependence(tokens="previous", hidden="none"),
    "gated": Dependence(tokens="previous", hidden="own"),
    "rnn": Dependence(tokens="prefix", hidden="prefix"),
}


class MarkovHead(CorrectionHead):
    """z_k from e = token_table[x_{k-1}].

    vanilla: z = e. gated: z = sigmoid(W [h; e] + b) * e. rnn: (g, c, o) = W [S; e; h] + b,
    S' = sig(g) S + (1 - sig(g)) tanh(c), z = tanh(o), S = 0 before x_1 (the anchor's own slot of
    `fill_in` has z = 0 and leaves S at 0 unless rnn_anchor_slot is 'read', as in the speculators
    package). Config keys: rank, variant, token_init, token_std, rnn_anchor_slot.
    Raises ValueError for an unknown option or an impossible rank.
    """

    def __init__(
        self,
        dims: ModelDims,
        token_embedding: Tensor,
        rank: int,
        variant: Variant = "vanilla",
        token_init: TokenInit = "target",
        token_std: float | None = None,
        rnn_anchor_slot: Literal["skip", "read"] = "skip",
    ) -> None:
        super().__init__(dims)
        check_choice("head.variant", variant, tuple(DEPENDENCE))
        check_choice("head.rnn_anchor_slot", rnn_anchor_slot, ("skip", "read"))
        self.first_rnn_slot = dims.slots.first_slot if rnn_anchor_slot == "skip" else 0
        self.variant = variant
        self.rank = rank
        self.dependence = DEPENDENCE[variant]
        self.readout = zero_readout(dims, rank)
        self.token_table = token_table(token_embedding, rank, token_init, token_std)
        if variant == "gated":
            self.gate_proj = nn.Linear(dims.hidden_size + rank, rank)
        if variant == "rnn":
            self.joint_proj = nn.Linear(2 * rank + dims.hidden_size, 3 * rank)
        init_normal(self)

    def code(self, hidden: Tensor, previous_tokens: Tensor) -> Tensor:
        """hidden [n, P, H], previous_tokens [n, P] -> z [n, P, r]."""
        return self.code_from(self.prepare(hidden), previous_tokens)

    def prepare(self, hidden: Tensor) -> Tensor:
        """The hidden states' share of the gates: [n, P, r] (gated) or [n, P, 3r] (rnn)."""
        if self.variant == "gated":
            weight = self.gate_proj.weight[:, : self.dims.hidden_size]
            return F.linear(hidden, weight, self.gate_proj.bias)
        if self.variant == "rnn":
            return F.linear(
                hidden, self.joint_proj.weight[:, 2 * self.rank :], self.joint_proj.bias
            )
        return hidden

    def code_from(self, prepared: Tensor, previous_tokens: Tensor) -> Tensor:
        """prepared from `prepare`, previous_tokens [n, P] -> z [n, P, r]."""
        if self.variant != "rnn":
            return self._gated(prepared, F.embedding(previous_tokens, self.token_table))
        state = self.init_state(prepared)
        codes = []
        for slot in range(previous_tokens.shape[1]):
            z, state = self.step(state, slot, previous_tokens[:, slot])
            codes.append(z)
        return torch.stack(codes, 1)

    def init_state(self, prepared: Tensor) -> tuple[Tensor, Tensor]:
        """(prepared, S = 0 [n, r])."""
        return prepared, self.token_table.new_zeros(prepared.shape[0], self.rank)

    def step(
        self, state: tuple[Tensor, Tensor], slot: int, previous_token: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """One gather and, for gated and rnn, one small matrix: previous_token [n] -> z [n, r]."""
        prepared, recurrent = state
        embedded = F.embedding(previous_token, self.token_table)
        if self.variant != "rnn":
            return self._gated(prepared[:, slot], embedded), state
        if slot < self.first_rnn_slot:
            return torch.zeros_like(recurrent), state
        weight = self.joint_proj.weight[:, : 2 * self.rank]
        joint = prepared[:, slot] + F.linear(torch.cat([recurrent, embedded], -1), weight)
        gate, candidate, output = joint.chunk(3, -1)
        keep = torch.sigmoid(gate)
        recurrent = keep * recurrent + (1 - keep) * torch.tanh(candidate)
        return torch.tanh(output), (prepared, recurrent)

    def _gated(self, prepared: Tensor, embedded: Tensor) -> Tensor:
        if self.variant == "vanilla":
            return embedded
        weight = self.gate_proj.weight[:, self.dims.hidden_size :]
        return torch.sigmoid(prepared + F.linear(embedded, weight)) * embedded
