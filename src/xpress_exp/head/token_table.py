"""The table of token codes [V, r] that Markov and xPress heads learn, and its two starts."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from xpress_exp.head.contract import INIT_STD, check_choice

TokenInit = Literal["target", "random"]
# A zero readout grows at a speed proportional to the code: codes from the target are of size 1.
TARGET_STD = 1.0


def token_table(
    token_embedding: Tensor, rank: int, init: TokenInit, std: float | None = None
) -> nn.Parameter:
    """Trainable table float32 [V, rank] for target embeddings token_embedding [V, H].

    init 'random': N(0, std^2), std 0.02 by default. init 'target': the embeddings projected onto
    their first `rank` principal directions and scaled by one factor to standard deviation std
    (1 by default), so that tokens that are alike for the target start with like codes.
    Raises ValueError for an unknown init or for 'target' with rank > H.
    """
    check_choice("head.token_init", init, ("target", "random"))
    vocab_size, hidden_size = token_embedding.shape
    if init == "random":
        return nn.Parameter(torch.randn(vocab_size, rank) * (INIT_STD if std is None else std))
    if rank > hidden_size:
        raise ValueError(
            f"head.rank={rank} exceeds the target's width {hidden_size}; use head.token_init=random"
        )
    centred = token_embedding.detach().float().cpu()
    centred = centred - centred.mean(0)
    _, directions = torch.linalg.eigh(centred.T @ centred)  # eigenvalues ascend
    codes = centred @ directions[:, -rank:].flip(1)
    scale = TARGET_STD if std is None else std
    return nn.Parameter(codes * (scale / codes.std().clamp_min(1e-12)))
