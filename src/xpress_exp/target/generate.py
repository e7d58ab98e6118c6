"""Batched sampling from the target: how responses are regenerated."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from xpress_exp.target.model import TargetCache, TargetModel

# Rows that have finished still cost time; they are dropped once this share of a batch is done.
COMPACT_SHARE = 0.25


@dataclass(frozen=True)
class Generated:
    """A response: token ids (the stop token included) and 'stop' or 'length'."""

    ids: tuple[int, ...]
    finish_reason: str


def generate_batch(
    target: TargetModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    seeds: Sequence[int],
) -> list[Generated]:
    """Continue each prompt by at most max_new_tokens tokens at the given temperature (0: greedy).

    Each row draws from its own generator, seeded by seeds[i], so that a row's randomness does not
    depend on its neighbours.
    """
    draws = [random.Random(seed) for seed in seeds]
    responses: list[list[int]] = [[] for _ in prompts]
    finished = [False] * len(prompts)
    rows = list(range(len(prompts)))
    tokens, mask = _left_padded(prompts, target)
    cache = target.new_cache()
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    for step in range(max_new_tokens):
        output = target.forward(tokens, cache, mask, positions, num_logits=1)
        assert output.logits is not None
        uniforms = [draws[row].random() for row in rows]
        chosen = sample(output.logits[:, -1], temperature, top_p, uniforms)
        for row, token in zip(rows, chosen.tolist(), strict=True):
            if not finished[row]:
                responses[row].append(token)
                finished[row] = token in target.stop_token_ids
        if all(finished[row] for row in rows) or step == max_new_tokens - 1:
            break
        rows, chosen, mask, positions = _compact(cache, rows, finished, chosen, mask, positions)
        tokens = chosen[:, None]
        positions = positions[:, -1:] + 1
        mask = torch.cat([mask, mask.new_ones(len(rows), 1)], 1)
    return [
        Generated(tuple(ids), "stop" if done else "length")
        for ids, done in zip(responses, finished, strict=True)
    ]


def _left_padded(prompts: Sequence[Sequence[int]], target: TargetModel) -> tuple[Tensor, Tensor]:
    """Token ids int64 [b, longest] padded on the left, and their mask bool."""
    longest = max(len(prompt) for prompt in prompts)
    filler = target.pad_token_id or 0
    tokens = torch.full((len(prompts), longest), filler, dtype=torch.int64, device=target.device)
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        tokens[row, longest - len(prompt) :] = torch.tensor(prompt, device=target.device)
        mask[row, longest - len(prompt) :] = True
    return tokens, mask


def _compact(
    cache: TargetCache,
    rows: list[int],
    finished: list[bool],
    chosen: Tensor,
    mask: Tensor,
    positions: Tensor,
) -> tuple[list[int], Tensor, Tensor, Tensor]:
    """Drop finished rows from the batch when enough of them have gathered."""
    alive = [index for index, row in enumerate(rows) if not finished[row]]
    if len(rows) - len(alive) < COMPACT_SHARE * len(rows):
        return rows, chosen, mask, positions
    index = torch.tensor(alive, device=chosen.device)
    cache.select_rows(index)
    return [rows[i] for i in alive], chosen[index], mask[index], positions[index]


def sample(logits: Tensor, temperature: float, top_p: float, uniforms: Sequence[float]) -> Tensor:
    """One token per row of logits [b, V] by inverse CDF at the given uniforms; greedy at 0."""
    if temperature == 0:
        return logits.argmax(-1)
    law = torch.softmax(logits.double() / temperature, -1)
    if top_p < 1:
        ordered, order = law.sort(-1, descending=True)
        # The token that crosses top_p is kept: drop a token only if the mass before it suffices.
        ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered >= top_p, 0.0)
        law = torch.zeros_like(law).scatter_(-1, order, ordered)
    cumulative = law.cumsum(-1)
    draws = torch.tensor(uniforms, dtype=cumulative.dtype, device=logits.device)[:, None]
    # Strictly below the total mass, so that rounding never selects a token of zero probability.
    draws = draws * cumulative[:, -1:]
    return torch.searchsorted(cumulative, draws, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
