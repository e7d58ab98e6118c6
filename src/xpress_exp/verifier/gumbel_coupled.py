"""Verification against the very tokens that plain sampling would draw from the same noise."""

from __future__ import annotations

import torch
from torch import Tensor

from xpress_exp.law import ALL_TOKENS, Truncation, processed
from xpress_exp.types import Proposal, Randomness, Verification
from xpress_exp.verifier.contract import Law, count_prefix


class GumbelCoupledVerifier:
    """Accepts while the draft equals argmax(log p + noise), noise being keyed by the position of
    the token (Daliri et al. 2024, arXiv 2408.07978).

    The output is a function of prompt and noise alone. Token for token it is what plain sampling
    gives with that noise, whatever drafted: any law, any dependence of the drafts on the noise. A
    draft under the same noise is accepted with probability (1 - TV) / (1 + TV) or more.
    """

    law: Law = "any"
    coupled = True

    @torch.no_grad()
    def verify(
        self,
        proposal: Proposal,
        target_logits: Tensor,
        temperature: float,
        generator: Randomness,
        truncation: Truncation = ALL_TOKENS,
    ) -> Verification:
        """target_logits [b, N+1, V]; raises ValueError for temperature 0, or randomness that is
        not keyed by position."""
        if temperature <= 0:
            raise ValueError(
                f"verifier=gumbel_coupled needs temperature > 0, not {temperature}; use greedy"
            )
        if generator is None or isinstance(generator, torch.Generator):
            raise ValueError(
                "verifier=gumbel_coupled needs position-keyed noise, not a generator; give "
                "decode.PositionNoise, or use verifier=rejection or delta"
            )
        logits = processed(target_logits, temperature, truncation)
        drawn = (logits + generator.gumbel(logits, None)).argmax(-1)
        num_accepted = count_prefix(proposal.tokens == drawn[:, :-1])
        return Verification(num_accepted, drawn.gather(1, num_accepted[:, None])[:, 0])
