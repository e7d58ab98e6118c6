"""What every verifier is, and the accept-or-replace chain that the sampling ones share."""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor

from xpress_exp.law import ALL_TOKENS, Truncation
from xpress_exp.types import Proposal, Randomness, Verification

Law = Literal["point_mass", "sampled", "any"]


class Verifier(Protocol):
    """Accepts a prefix of the drafts so that the output follows the target's law exactly.

    law: the kind of draft it can weigh. coupled: whether it compares drafts with tokens drawn from
    position-keyed noise, which plain sampling then must use as well.
    """

    law: Law
    coupled: bool

    def verify(
        self,
        proposal: Proposal,
        target_logits: Tensor,
        temperature: float,
        generator: Randomness,
        truncation: Truncation = ALL_TOKENS,
    ) -> Verification:
        """target_logits float [b, N+1, V], raw: row k is the target's law after x_0..x_k.

        truncation: that of the drafts. Raises ValueError when temperature, randomness or the
        proposal's law do not fit the verifier.
        """
        ...


def check_sampling(name: str, law: Law, proposal: Proposal, temperature: float) -> None:
    """Raise ValueError unless temperature > 0 and the proposal's law is the one required."""
    if temperature <= 0:
        raise ValueError(f"verifier={name} needs temperature > 0, not {temperature}; use greedy")
    found = "point_mass" if proposal.logits is None else "sampled"
    if found != law:
        remedy = "delta" if found == "point_mass" else "rejection"
        raise ValueError(
            f"verifier={name} needs a {law} draft but got a {found} one; use verifier={remedy}"
        )


def stream(name: str, generator: Randomness) -> torch.Generator | None:
    """The generator; raises ValueError for position-keyed noise, whose draws are not independent
    of the drafts."""
    if generator is None or isinstance(generator, torch.Generator):
        return generator
    raise ValueError(
        f"verifier={name} draws coins of its own and cannot use position-keyed noise; give a "
        "torch.Generator, or use verifier=gumbel_coupled"
    )


def count_prefix(accepted: Tensor) -> Tensor:
    """Length of the leading run of True: bool [b, N] -> int64 [b]."""
    return accepted.to(torch.int64).cumprod(1).sum(1)


def verify_chain(
    tokens: Tensor, draft: Tensor, target: Tensor, generator: torch.Generator | None
) -> Verification:
    """Speculative sampling (Leviathan et al. 2023), all positions at once.

    tokens int64 [b, N]; draft q [b, N, V]; target p [b, N+1, V], both float32 or wider. Token k is
    accepted when u < p/q (never when q = 0). At the first rejection the next token is drawn from
    the normalised positive part of p - q, or from p where that is empty by rounding; after N
    acceptances it is drawn from p.
    """
    chosen = tokens[..., None]
    p = target[:, :-1].gather(2, chosen)[..., 0]
    q = draft.gather(2, chosen)[..., 0]
    coins = torch.rand(p.shape, generator=generator, device=p.device, dtype=p.dtype)
    num_accepted = count_prefix((q > 0) & (coins * q < p))

    rows = torch.arange(tokens.shape[0], device=tokens.device)
    law = target[rows, num_accepted]
    rejected = num_accepted < tokens.shape[1]
    at_rejection = draft[rows, num_accepted.clamp_max(tokens.shape[1] - 1)]
    residual = (law - at_rejection * rejected[:, None]).clamp_min(0)
    weights = torch.where(residual.sum(1, keepdim=True) > 0, residual, law)
    next_token = torch.multinomial(weights, 1, generator=generator)[:, 0]
    return Verification(num_accepted, next_token)
