"""Verification at temperature 0: accept while the draft equals the target's argmax."""

from __future__ import annotations

import torch
from torch import Tensor

from xpress_exp.law import ALL_TOKENS, Truncation
from xpress_exp.readout import argmax
from xpress_exp.types import Proposal, Randomness, Verification
from xpress_exp.verifier.contract import Law, count_prefix


class GreedyVerifier:
    """Output equals greedy autoregressive decoding, up to ties of floating-point numerics."""

    law: Law = "any"
    coupled = False

    @torch.no_grad()
    def verify(
        self,
        proposal: Proposal,
        target_logits: Tensor,
        temperature: float,
        generator: Randomness,  # noqa: ARG002 - the protocol asks for it
        truncation: Truncation = ALL_TOKENS,  # noqa: ARG002 - no filter changes an argmax
    ) -> Verification:
        """target_logits [b, N+1, V]; raises ValueError when temperature is not 0."""
        if temperature != 0:
            raise ValueError(
                f"verifier=greedy needs temperature 0, not {temperature}; use rejection or delta"
            )
        best = argmax(target_logits)
        num_accepted = count_prefix(proposal.tokens == best[:, :-1])
        return Verification(num_accepted, best.gather(1, num_accepted[:, None])[:, 0])
