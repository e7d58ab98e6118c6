"""Rejection sampling of drafts that were drawn from a known law."""

from __future__ import annotations

import torch
from torch import Tensor

from xpress_exp.law import ALL_TOKENS, Truncation, float32_or_wider, probabilities
from xpress_exp.types import Proposal, Randomness, Verification
from xpress_exp.verifier.contract import Law, check_sampling, stream, verify_chain


class RejectionVerifier:
    """Lossless at temperature > 0 when proposal.logits is the tensor that the tokens were drawn
    from; both laws are normalised in float32 or wider."""

    law: Law = "sampled"
    coupled = False

    @torch.no_grad()
    def verify(
        self,
        proposal: Proposal,
        target_logits: Tensor,
        temperature: float,
        generator: Randomness,
        truncation: Truncation = ALL_TOKENS,
    ) -> Verification:
        """target_logits [b, N+1, V]; raises ValueError for temperature 0, position-keyed
        noise or a point mass."""
        check_sampling("rejection", self.law, proposal, temperature)
        target = probabilities(target_logits, temperature, truncation)
        draft = full_law(proposal, target.shape[-1])
        return verify_chain(proposal.tokens, draft, target, stream("rejection", generator))


def full_law(proposal: Proposal, vocab_size: int) -> Tensor:
    """Law of a sampled proposal over the target vocabulary, [b, N, vocab_size]; tokens outside
    a reduced draft vocabulary have probability 0."""
    if proposal.logits is None:
        raise ValueError("proposal.logits=None has no sampling law; use verifier=delta")
    drawn = float32_or_wider(proposal.logits).softmax(-1)
    if proposal.vocab_ids is None:
        return drawn
    full = drawn.new_zeros(*drawn.shape[:-1], vocab_size)
    full[..., proposal.vocab_ids] = drawn
    return full
