"""What every correction head is: a low-rank, causal correction of a drafter's base logits.

A head turns hidden states and previous tokens of a block into a code z [n, P, r]; the corrected
logits are always `base + z @ readout.T`, so that objectives and solvers can work in chunks of the
vocabulary or of the slots. Slots and previous tokens follow `types.SlotMap`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from xpress_exp.few_rows import FewRows, LayoutChoice
from xpress_exp.readout import vocab_logits
from xpress_exp.types import ModelDims

AnchorPrev = Literal["anchor", "predecessor"]
INIT_STD = 0.02


@dataclass(frozen=True)
class Dependence:
    """What the code of slot k reads.

    tokens: of the previous tokens, 'none', 'previous' (that of slot k) or 'prefix' (slots <= k).
    hidden: of the hidden states, 'none', 'own' (slot k), 'prefix' (slots <= k) or 'block' (all).
    """

    tokens: Literal["none", "previous", "prefix"]
    hidden: Literal["none", "own", "prefix", "block"]


class CorrectionHead(nn.Module):
    """Base of all heads. A head implements `code`; the rest are speed-ups proved equal to it.

    dependence: declared, and tested by perturbation. anchor_prev: the token that slot 0 of
    `fill_in` reads as its previous one; the caller applies it. readout: [V', r], zero at the start,
    so that an untrained head is exactly the bare drafter.
    """

    dependence: Dependence
    anchor_prev: AnchorPrev = "anchor"
    readout: Tensor

    def __init__(self, dims: ModelDims) -> None:
        super().__init__()
        self.dims = dims
        # In a tuple: it is no part of the state, which holds the readout once.
        self._fast_readout: tuple[FewRows, ...] = ()

    def code(self, hidden: Tensor, previous_tokens: Tensor) -> Tensor:
        """Code of whole blocks, teacher forced or one parallel pass.

        hidden [n, P, H] float, previous_tokens [n, P] int64 (target vocabulary) -> z [n, P, r].
        """
        raise NotImplementedError

    def prepare(self, hidden: Tensor) -> Any:
        """Everything that depends on hidden [n, P, H] alone; computed once per block."""
        return hidden

    def code_from(self, prepared: Any, previous_tokens: Tensor) -> Tensor:
        """Equal to code(hidden, previous_tokens) for prepared = prepare(hidden)."""
        return self.code(prepared, previous_tokens)

    def init_state(self, prepared: Any) -> Any:
        """State before slot 0 of the incremental form."""
        return prepared, ()

    def step(self, state: Any, slot: int, previous_token: Tensor) -> tuple[Tensor, Any]:
        """Code of one slot; slots must come in order 0, 1, ...

        previous_token [n] int64 -> (z [n, r], next state); z equals code(...)[:, slot].
        """
        prepared, tokens = state
        tokens = (*tokens, previous_token)
        missing = self.dims.slots.block_size - len(tokens)
        read = torch.stack([*tokens, *[previous_token] * missing], 1)
        return self.code_from(prepared, read)[:, slot], (prepared, tokens)

    def correct(self, base_logits: Tensor, z: Tensor) -> Tensor:
        """Corrected logits base_logits [..., V'] + z [..., r] @ readout.T; the one place of it."""
        if self.readout.shape[1] == 0:
            return base_logits
        if self._fast_readout and self.readout.dtype == base_logits.dtype:
            # In place: a second matrix of this size costs as much as the sum.
            return self._fast_readout[0](z).add_(base_logits)
        if self._fast_readout:
            return base_logits + self._fast_readout[0](z)
        return base_logits + vocab_logits(z, self.readout)

    def make_fast(self, choice: LayoutChoice) -> None:
        """Use a readout fast for few rows from now on; it must not change any more."""
        if self.readout.shape[1]:
            self._fast_readout = (FewRows(self.readout, choice([self.readout])),)

    def refold(self) -> None:
        """Recompute inference caches after a change of weights; nothing to do by default."""


def init_normal(module: nn.Module, std: float = INIT_STD) -> None:
    """Draw every linear weight below `module` from N(0, std^2) and set biases to 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=std)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def zero_readout(dims: ModelDims, rank: int) -> nn.Parameter:
    """Zero-initialised readout [V', rank]. Raises ValueError when rank < 1."""
    if rank < 1:
        raise ValueError(f"head.rank={rank} must be at least 1; use head=none for no correction")
    return nn.Parameter(torch.zeros(dims.draft_vocab_size, rank))


def check_choice(field: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise ValueError unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{field}={value} is unknown; use one of {', '.join(choices)}")
