"""Rejection sampling of drafts that were drawn from a known law."""

from __future__ import annotations

import torch
from torch import Tensor

from xpress_exp.types import Proposal, Verification
from xpress_exp.verifier.contract import Law, check_sampling, verify_chain


class RejectionVerifier:
    """Lossless at temperature > 0 when proposal.logits is the tensor that the tokens were drawn
    from; both laws are normalised in float32."""

    law: Law = "sampled"

    @torch.no_grad()
    def verify(
        self,
        proposal: Proposal,
        target_logits: Tensor,
        temperature: float,
        generator: torch.Generator | None,
    ) -> Verification:
        """target_logits [b, N+1, V]; raises ValueError for temperature 0 or a point mass."""
        check_sampling("rejection", self.law, proposal, temperature)
        target = (target_logits.float() / temperature).softmax(-1)
        draft = full_law(proposal, target.shape[-1])
        return verify_chain(proposal.tokens, draft, target, generator)


def full_law(proposal: Proposal, vocab_size: int) -> Tensor:
    """Law of a sampled proposal over the target vocabulary, float32 [b, N, vocab_size]; tokens
    outside a reduced draft vocabulary have probability 0."""
    if proposal.logits is None:
        raise ValueError("proposal.logits=None has no sampling law; use verifier=delta")
    law = proposal.logits.float().softmax(-1)
    if proposal.vocab_ids is None:
        return law
    full = law.new_zeros(*law.shape[:-1], vocab_size)
    full[..., proposal.vocab_ids] = law
    return full
