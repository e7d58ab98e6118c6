"""Verification of deterministic drafts at temperature > 0."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from xpress_exp.law import ALL_TOKENS, Truncation, probabilities
from xpress_exp.types import Proposal, Randomness, Verification
from xpress_exp.verifier.contract import Law, check_sampling, stream, verify_chain


class DeltaVerifier:
    """Accepts x with probability p(x), else draws from p without x: the chain rule for a draft law
    that puts all mass on x. Lossless for drafts that no coin of this round has touched."""

    law: Law = "point_mass"
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
        noise or a sampled law."""
        check_sampling("delta", self.law, proposal, temperature)
        target = probabilities(target_logits, temperature, truncation)
        draft = F.one_hot(proposal.tokens, target.shape[-1]).to(target.dtype)
        return verify_chain(proposal.tokens, draft, target, stream("delta", generator))
