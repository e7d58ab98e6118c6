"""The xPress refiner (arXiv 2608.02438, eq. 5-9): fuse, causal mix, residual MLP, readout."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xpress_exp.few_rows import LayoutChoice
from xpress_exp.head.contract import (
    INIT_STD,
    AnchorPrev,
    CorrectionHead,
    Dependence,
    check_choice,
    init_normal,
    zero_readout,
)
from xpress_exp.head.token_table import TokenInit, token_table
from xpress_exp.types import ModelDims


class SwiGLU(nn.Module):
    """W_down (silu(W_gate c) * W_up c), width 2r: the authors' released code."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(rank, 2 * rank, bias=False)
        self.up_proj = nn.Linear(rank, 2 * rank, bias=False)
        self.down_proj = nn.Linear(2 * rank, rank, bias=False)

    def forward(self, c: Tensor) -> Tensor:
        """[..., r] -> [..., r]."""
        return self.down_proj(F.silu(self.gate_proj(c)) * self.up_proj(c))


class SiLUMLP(nn.Module):
    """W_2 silu(W_1 c), width 2r: the paper's eq. 7."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.up_proj = nn.Linear(rank, 2 * rank, bias=False)
        self.down_proj = nn.Linear(2 * rank, rank, bias=False)

    def forward(self, c: Tensor) -> Tensor:
        """[..., r] -> [..., r]."""
        return self.down_proj(F.silu(self.up_proj(c)))


class XPressHead(CorrectionHead):
    """z = c + MLP(c), c = (I + L) a, a_k = W_in [W_h h_k ; W_g mean(h) ; W_e[x_{k-1}]].

    L [r, P, P] is causal per channel: strictly lower triangular (mix 'strict', the paper) or with
    its diagonal ('inclusive', the released checkpoint), and 0 at the start. init 'markov' starts
    with z close to W_e[x_{k-1}], 'random' draws everything from N(0, 0.02^2).
    Inference: the hidden part once per block, the folded table (W^e W_e)^T [V, r] once per set of
    weights; it is used only in eval mode without gradients and is rebuilt when weights change.
    Raises ValueError for an unknown option or an impossible rank.
    """

    dependence = Dependence(tokens="prefix", hidden="block")
    causal: Tensor

    def __init__(
        self,
        dims: ModelDims,
        token_embedding: Tensor,
        rank: int,
        mix: Literal["strict", "inclusive"] = "strict",
        mlp: Literal["swiglu", "silu"] = "swiglu",
        init: Literal["markov", "random"] = "markov",
        token_init: TokenInit = "target",
        anchor_prev: AnchorPrev = "anchor",
        token_std: float | None = None,
    ) -> None:
        super().__init__(dims)
        check_choice("head.mix", mix, ("strict", "inclusive"))
        check_choice("head.mlp", mlp, ("swiglu", "silu"))
        check_choice("head.init", init, ("markov", "random"))
        check_choice("head.anchor_prev", anchor_prev, ("anchor", "predecessor"))
        self.anchor_prev = anchor_prev
        slots = dims.slots.block_size
        self.readout = zero_readout(dims, rank)
        self.token_table = token_table(token_embedding, rank, token_init, token_std)
        self.down_hidden = nn.Linear(dims.hidden_size, rank, bias=False)
        self.down_global = nn.Linear(dims.hidden_size, rank, bias=False)
        self.in_proj = nn.Linear(3 * rank, rank, bias=False)
        self.mix = nn.Parameter(torch.zeros(rank, slots, slots))
        self.mlp = SwiGLU(rank) if mlp == "swiglu" else SiLUMLP(rank)
        causal = torch.ones(slots, slots).tril(-1 if mix == "strict" else 0)
        self.register_buffer("causal", causal, persistent=False)
        self._folded: tuple[tuple[int, ...], Tensor] | None = None
        self._frozen_table: Tensor | None = None
        init_normal(self)
        if init == "markov":
            self._start_as_markov()

    def code(self, hidden: Tensor, previous_tokens: Tensor) -> Tensor:
        """Eq. 5-8 as written: hidden [n, P, H], previous_tokens [n, P] -> z [n, P, r]."""
        shared = self.down_global(hidden.mean(1, keepdim=True))
        parts = [
            self.down_hidden(hidden),
            shared.expand(-1, hidden.shape[1], -1),
            F.embedding(previous_tokens, self.token_table),
        ]
        c = self._mixed(self.in_proj(torch.cat(parts, -1)))
        return c + self.mlp(c)

    def prepare(self, hidden: Tensor) -> Tensor:
        """(I + L)(W^h W_h h + W^g W_g mean(h)), [n, P, r]: constant over the passes of a block."""
        from_hidden, from_global, _ = self.in_proj.weight.chunk(3, 1)
        own = F.linear(self.down_hidden(hidden), from_hidden)
        shared = F.linear(self.down_global(hidden.mean(1, keepdim=True)), from_global)
        return self._mixed(own + shared)

    def code_from(self, prepared: Tensor, previous_tokens: Tensor) -> Tensor:
        """prepared [n, P, r], previous_tokens [n, P] -> z [n, P, r]."""
        c = prepared + self._mixed(self._token_part(previous_tokens))
        return c + self.mlp(c)

    def init_state(self, prepared: Tensor) -> tuple[Tensor, Tensor]:
        """(I + L [P, P, r], c so far [n, P, r]): c starts as the hidden part."""
        eye = torch.eye(self.causal.shape[0], dtype=prepared.dtype, device=prepared.device)
        return (eye + self.mix * self.causal).permute(1, 2, 0), prepared

    def step(
        self, state: tuple[Tensor, Tensor], slot: int, previous_token: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Adds the column of this slot's token to c: previous_token [n] -> z [n, r]."""
        mixer, c = state
        c = c + mixer[:, slot] * self._token_part(previous_token)[:, None]
        return c[:, slot] + self.mlp(c[:, slot]), (mixer, c)

    def make_fast(self, choice: LayoutChoice) -> None:
        """Also keep the folded table without watching its sources."""
        super().make_fast(choice)
        self._frozen_table = self._table()

    def refold(self) -> None:
        """Rebuild the folded token table now."""
        self._folded = None
        self._table()

    def train(self, mode: bool = True) -> XPressHead:
        """Switch mode; the folded table is dropped, since training changes its weights."""
        self._folded = None
        return super().train(mode)

    def _mixed(self, a: Tensor) -> Tensor:
        return a + torch.einsum("rkj,njr->nkr", self.mix * self.causal, a)

    def _token_part(self, tokens: Tensor) -> Tensor:
        if self._frozen_table is not None:
            return F.embedding(tokens, self._frozen_table)
        if not (self.training or torch.is_grad_enabled()):
            return F.embedding(tokens, self._table())
        from_token = self.in_proj.weight.chunk(3, 1)[2]
        return F.linear(F.embedding(tokens, self.token_table), from_token)

    def _table(self) -> Tensor:
        sources = (self.token_table, self.in_proj.weight)
        # Address and write counter of both matrices: any load, step or move makes them differ.
        key = tuple(
            number
            for weight in sources
            for number in (weight.data_ptr(), 0 if weight.is_inference() else weight._version)
        )
        if self._folded is None or self._folded[0] != key:
            with torch.no_grad():
                self._folded = key, F.linear(self.token_table, self.in_proj.weight.chunk(3, 1)[2])
        return self._folded[1]

    def _start_as_markov(self) -> None:
        rank = self.in_proj.out_features
        with torch.no_grad():
            self.in_proj.weight[:, : 2 * rank].normal_(std=INIT_STD / rank**0.5)
            self.in_proj.weight[:, 2 * rank :] = torch.eye(rank)
            self.mlp.down_proj.weight.zero_()
