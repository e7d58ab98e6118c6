"""Acceptance against the token of the noise, on tables written by hand."""

from __future__ import annotations

import pytest
import torch

from xpress_exp.law import Truncation
from xpress_exp.types import Proposal
from xpress_exp.verifier import DeltaVerifier, GumbelCoupledVerifier, RejectionVerifier


class Table:
    """Noise that is known."""

    def __init__(self, values):
        self.values = torch.tensor(values)[None]

    def gumbel(self, logits, vocab_ids):
        assert vocab_ids is None and logits.shape == self.values.shape
        return self.values


# The argmax of logits + noise is 2, 0, 1; of the logits alone 0, 0, 0.
LOGITS = torch.tensor([[[1.0, 0.0, 0.5], [1.0, 0.0, 0.0], [0.4, 0.0, -9.0]]])
NOISE = [[0.0, 0.0, 1.0], [0.5, 1.2, 0.0], [0.0, 0.7, 2.0]]


@pytest.mark.parametrize("law", [None, torch.zeros(1, 2, 3)])
@pytest.mark.parametrize(
    ("tokens", "accepted", "token"),
    [([2, 0], 2, 1), ([2, 1], 1, 0), ([0, 0], 0, 2), ([1, 2], 0, 2)],
)
def test_it_accepts_what_the_noise_says(tokens, accepted, token, law):
    found = GumbelCoupledVerifier().verify(
        Proposal(torch.tensor([tokens]), law), LOGITS, 1.0, Table(NOISE)
    )
    assert (found.num_accepted.tolist(), found.next_token.tolist()) == ([accepted], [token])


def test_temperature_and_truncation_change_the_law_before_the_noise_is_added():
    draft = Proposal(torch.tensor([[2, 0]]), None)
    cold = GumbelCoupledVerifier().verify(draft, LOGITS, 0.1, Table(NOISE))
    assert (cold.num_accepted.item(), cold.next_token.item()) == (0, 0)
    best = GumbelCoupledVerifier().verify(draft, LOGITS, 1.0, Table(NOISE), Truncation(1))
    assert (best.num_accepted.item(), best.next_token.item()) == (0, 0)


def test_randomness_of_the_wrong_kind_and_temperature_zero_are_refused():
    draft = Proposal(torch.tensor([[2, 0]]), None)
    for generator in (None, torch.Generator()):
        with pytest.raises(ValueError, match="needs position-keyed noise"):
            GumbelCoupledVerifier().verify(draft, LOGITS, 1.0, generator)
    with pytest.raises(ValueError, match=r"needs temperature > 0, not 0\.0"):
        GumbelCoupledVerifier().verify(draft, LOGITS, 0.0, Table(NOISE))
    with pytest.raises(ValueError, match="verifier=delta draws coins of its own"):
        DeltaVerifier().verify(draft, LOGITS, 1.0, Table(NOISE))
    sampled = Proposal(draft.tokens, torch.zeros(1, 2, 3))
    with pytest.raises(ValueError, match="verifier=rejection draws coins of its own"):
        RejectionVerifier().verify(sampled, LOGITS, 1.0, Table(NOISE))
