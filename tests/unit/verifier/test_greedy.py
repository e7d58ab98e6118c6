"""Greedy verification on rows written by hand."""

from __future__ import annotations

import pytest
import torch

from xpress_exp.types import Proposal
from xpress_exp.verifier import GreedyVerifier


def logits_with_argmax(rows):
    return torch.nn.functional.one_hot(torch.tensor(rows), 7).float() * 3


@pytest.mark.parametrize("law", [None, torch.zeros(4, 3, 7)])
def test_it_accepts_the_common_prefix_and_commits_the_argmax(law):
    tokens = torch.tensor([[1, 2, 3], [1, 0, 3], [0, 2, 3], [5, 6, 0]])
    target = logits_with_argmax([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], [5, 6, 1, 0]])
    found = GreedyVerifier().verify(Proposal(tokens, law), target, 0.0, None)
    assert found.num_accepted.tolist() == [3, 1, 0, 2]
    assert found.next_token.tolist() == [4, 2, 1, 1]


def test_a_match_after_a_mismatch_is_not_accepted():
    found = GreedyVerifier().verify(
        Proposal(torch.tensor([[0, 2]]), None), logits_with_argmax([[1, 2, 3]]), 0.0, None
    )
    assert found.num_accepted.item() == 0


def test_a_temperature_is_refused():
    with pytest.raises(ValueError, match="verifier=greedy needs temperature 0, not 1"):
        GreedyVerifier().verify(
            Proposal(torch.zeros(1, 1, dtype=torch.int64), None), torch.zeros(1, 2, 3), 1.0, None
        )
