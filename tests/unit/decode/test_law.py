"""The law of three sampled tokens through the whole loop, against exact enumeration."""

from __future__ import annotations

import itertools
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from xpress_exp.decode import decode_speculative, random_stream
from xpress_exp.solver.contract import BlockState
from xpress_exp.types import Proposal
from xpress_exp.verifier import DeltaVerifier, RejectionVerifier

SMALL = 3


def small_table(tokens: tuple[int, ...]) -> Tensor:
    """A strongly context-dependent law over three tokens."""
    seed = sum((token + 1) * 7**place for place, token in enumerate(reversed(tokens[-3:])))
    return 1.5 * torch.randn(SMALL, generator=torch.Generator().manual_seed(seed))


def exact_law(prompt: list[int], length: int, temperature: float) -> dict[tuple[int, ...], float]:
    law = {}
    for text in itertools.product(range(SMALL), repeat=length):
        probability = 1.0
        for place, token in enumerate(text):
            logits = small_table((*prompt, *text[:place])).double()
            probability *= float(torch.softmax(logits / temperature, -1)[token])
        law[text] = probability
    return law


class SampledSolver:
    """Independent draws from a fixed wrong law, or always token 1 as a point mass."""

    def __init__(self, sampled: bool) -> None:
        self.sampled = sampled

    def propose(
        self, _block: BlockState, _head: Any, temperature: float, generator: Any
    ) -> Proposal:
        if not self.sampled:
            return Proposal(torch.ones(1, 3, dtype=torch.int64), None)
        logits = torch.tensor([0.5, 0.0, -0.5]).expand(1, 3, SMALL) / temperature
        tokens = torch.multinomial(logits[0].softmax(-1), 1, generator=generator)
        return Proposal(tokens.T, logits)


@pytest.mark.property("P6")
@pytest.mark.parametrize("sampled", [True, False])
def test_output_law_equals_the_target_law(sampled: bool, make_target: Any, drafter: Any) -> None:
    target = make_target(small_table)
    target.stop_token_ids = frozenset()
    model: Any = SimpleNamespace(
        drafter=drafter, head=None, vocab_ids=None, base_logits=lambda h: h
    )
    solver: Any = SampledSolver(sampled)
    verifier: Any = RejectionVerifier() if sampled else DeltaVerifier()
    prompt, count, temperature = [1, 0], 1500, 0.8
    seen = Counter(
        decode_speculative(
            target,
            model,
            solver,
            verifier,
            prompt,
            temperature=temperature,
            draft_temperature=temperature if sampled else 0.0,
            max_new_tokens=3,
            generator=random_stream(target.device, "law", index),
        ).tokens
        for index in range(count)
    )
    chi_square, degrees = 0.0, -1
    rare_seen = rare_expected = 0.0
    for text, probability in exact_law(prompt, 3, temperature).items():
        expected = count * probability
        if expected < 5:
            rare_seen, rare_expected = rare_seen + seen[text], rare_expected + expected
            continue
        chi_square, degrees = chi_square + (seen[text] - expected) ** 2 / expected, degrees + 1
    if rare_expected:
        chi_square += (rare_seen - rare_expected) ** 2 / rare_expected
        degrees += 1
    assert degrees > 8
    assert (chi_square - degrees) / (2 * degrees) ** 0.5 < 4.5
