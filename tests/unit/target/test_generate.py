"""Batched generation against naive loops, Transformers' generate and closed-form laws."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
import torch

from xpress_exp.target import TinyTarget, generate, generate_batch
from xpress_exp.target.generate import sample

PROMPTS = [[5, 9, 4, 13, 6, 6, 8], [20], [31, 30, 29], [11, 12]]


def greedy(target: TinyTarget, prompt: list[int], limit: int) -> list[int]:
    """One full forward per token, no cache, no padding."""
    text = list(prompt)
    while len(text) - len(prompt) < limit:
        logits = target.forward(torch.tensor([text])).logits
        assert logits is not None
        text.append(int(logits[0, -1].argmax()))
        if text[-1] in target.stop_token_ids:
            break
    return text[len(prompt) :]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_greedy_equals_a_naive_loop_and_transformers(
    make_target: Callable[..., TinyTarget], family: str
) -> None:
    target = make_target(family, seed=3, vocab_size=20)
    prompts = [[token % 20 for token in prompt] for prompt in PROMPTS]
    found = generate_batch(target, prompts, 14, 0.0, 1.0, [0] * 4)
    for prompt, response in zip(prompts, found, strict=True):
        ids = torch.tensor([prompt])
        settings = {"do_sample": False, "max_new_tokens": 14, "pad_token_id": 0}
        mask = torch.ones_like(ids)
        expected = target._model.generate(ids, attention_mask=mask, **settings)  # type: ignore
        assert list(response.ids) == expected[0, len(prompt) :].tolist()
        assert list(response.ids) == greedy(target, prompt, 14)
        stopped = response.ids[-1] in target.stop_token_ids
        assert response.finish_reason == ("stop" if stopped else "length")
        assert stopped or len(response.ids) == 14


def test_stop_token_is_kept_and_ends_only_its_row(
    make_target: Callable[..., TinyTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make_target()
    text = greedy(target, PROMPTS[0], 10)
    monkeypatch.setattr(target, "stop_token_ids", frozenset({text[3]}))
    found = generate_batch(target, PROMPTS, 10, 0.0, 1.0, [0] * 4)
    cut = text[: text.index(text[3]) + 1]
    assert found[0].ids == tuple(cut) and found[0].finish_reason == "stop"
    assert [list(row.ids) for row in found[1:]] == [greedy(target, p, 10) for p in PROMPTS[1:]]


def test_a_row_does_not_depend_on_its_neighbours(make_target: Callable[..., TinyTarget]) -> None:
    target = make_target()
    seeds = [7, 8, 9, 10]
    together = generate_batch(target, PROMPTS, 12, 0.9, 0.95, seeds)
    for prompt, seed, row in zip(PROMPTS, seeds, together, strict=True):
        assert generate_batch(target, [prompt], 12, 0.9, 0.95, [seed]) == [row]
    assert generate_batch(target, PROMPTS[::-1], 12, 0.9, 0.95, seeds[::-1]) == together[::-1]
    assert generate_batch(target, PROMPTS, 12, 0.9, 0.95, [1, 2, 3, 4]) != together


def test_dropping_finished_rows_changes_no_response(
    make_target: Callable[..., TinyTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make_target(vocab_size=14)
    monkeypatch.setattr(target, "stop_token_ids", frozenset({2, 5, 9}))
    prompts = [[token % 14 for token in prompt] for prompt in PROMPTS * 3]
    results = []
    for share in (0.0, 0.25, 9.0):  # at once, the default, never
        monkeypatch.setattr(generate, "COMPACT_SHARE", share)
        results.append(generate_batch(target, prompts, 16, 1.0, 1.0, list(range(12))))
    assert results[0] == results[1] == results[2]
    assert len({len(row.ids) for row in results[0]}) > 3


def test_first_token_frequencies_follow_the_softmax(make_target: Callable[..., TinyTarget]) -> None:
    target, temperature, count = make_target(vocab_size=12), 1.3, 1500
    logits = target.forward(torch.tensor([[5, 7]]), num_logits=1).logits
    assert logits is not None
    law = torch.softmax(logits[0, -1].double() / temperature, -1)
    rows = generate_batch(target, [[5, 7]] * count, 1, temperature, 1.0, list(range(count)))
    seen = Counter(row.ids[0] for row in rows)
    expected = {token: count * float(law[token]) for token in range(12)}
    common = [token for token in expected if expected[token] >= 5]
    chi_square = sum((seen[t] - expected[t]) ** 2 / expected[t] for t in common)
    degrees = len(common) - 1
    assert degrees > 4
    assert abs(chi_square - degrees) / (2 * degrees) ** 0.5 < 4.5


@pytest.mark.parametrize("top_p", [1.0, 0.85, 0.5, 1e-9])
@pytest.mark.parametrize("temperature", [0.4, 1.0])
def test_inverse_cdf_inside_the_nucleus(top_p: float, temperature: float) -> None:
    logits = torch.tensor([1.0, -0.5, 2.0, 0.3, -3.0, 1.4, 0.9])
    law = torch.softmax(logits.double() / temperature, -1).tolist()
    nucleus, mass = set(), 0.0  # the smallest set of likeliest tokens with mass >= top_p
    for token in sorted(range(len(law)), key=lambda token: -law[token]):
        if mass >= top_p:
            break
        nucleus.add(token)
        mass += law[token]
    # Evenly spaced uniforms: each token's count is its share of the nucleus up to rounding.
    count = 4000
    uniforms = [(index + 0.5) / count for index in range(count)]
    seen = Counter(sample(logits.expand(count, -1), temperature, top_p, uniforms).tolist())
    for token, probability in enumerate(law):
        share = probability / mass if token in nucleus else 0.0
        assert abs(seen[token] - count * share) <= 1, token
        assert token in nucleus or seen[token] == 0


def test_extreme_uniforms_draw_possible_tokens() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf]])
    assert sample(logits, 1.0, 1.0, [0.0]).item() == 1
    assert sample(logits, 1.0, 1.0, [1 - 2**-53]).item() == 2
    assert sample(logits, 0.0, 1.0, [0.3]).item() == 2
    rng = random.Random(0)
    rows = torch.randn(300, 9, generator=torch.Generator().manual_seed(0))
    narrow = sample(rows, 1.0, 1e-6, [rng.random() for _ in range(300)])
    assert torch.equal(narrow, rows.argmax(-1))
