"""Verification of deterministic drafts at temperature > 0."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from xpress_exp.types import Proposal, Verification
from xpress_exp.verifier.contract import Law, check_sampling, verify_chain


class DeltaVerifier:
    """Accepts x with probability p(x), else draws from p without x: the chain rule for a draft law
    that puts all mass on x. Lossless for drafts that no coin of this round has touched."""

    law: Law = "point_mass"

    @torch.no_grad()
    def verify(
        self,
        proposal: Proposal,
        target_logits: Tensor,
        temperature: float,
        generator: torch.Generator | None,
    ) -> Verification:
        """target_logits [b, N+1, V]; raises ValueError for temperature 0 or a sampled law."""
        check_sampling("delta", self.law, proposal, temperature)
        target = (target_logits.float() / temperature).softmax(-1)
        draft = F.one_hot(proposal.tokens, target.shape[-1]).to(target.dtype)
        return verify_chain(proposal.tokens, draft, target, generator)
