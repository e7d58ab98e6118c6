"""Gumbel noise as finitely many cells with exact probabilities.

Noise is enumerated, not drawn. With Gumbel noise eps, E = exp(-eps) is exponential, and E / sum(E)
is uniform on the simplex. Under logits l the argmax of l + eps is the token of the smallest
E_v / exp(l_v): every context that a solver may read splits the simplex along straight lines. All
contexts of a position together leave convex cells in which every solver and verifier decides alike,
so that one point of each cell, weighted with its area, gives the law without sampling error.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

Point = tuple[float, ...]


class Tables:
    """A noise source that hands out given tables [rows, >= n, V'], one per question, the last one
    again and again."""

    def __init__(self, *tables: Tensor) -> None:
        self.tables = list(tables)

    def gumbel(self, logits: Tensor, vocab_ids: Tensor | None) -> Tensor:
        table = self.tables.pop(0) if len(self.tables) > 1 else self.tables[0]
        chosen = table[:, : logits.shape[1]]
        wide = vocab_ids is not None and chosen.shape[-1] > len(vocab_ids)
        return chosen[..., vocab_ids] if wide else chosen


def clipped(polygon: list[Point], u: int, v: int, weights: Sequence[float]) -> list[Point]:
    """The part of a convex polygon where E_u / weights[u] <= E_v / weights[v]."""
    heights = [point[u] * weights[v] - point[v] * weights[u] for point in polygon]
    kept: list[Point] = []
    for i, (point, height) in enumerate(zip(polygon, heights, strict=True)):
        before, height_before = polygon[i - 1], heights[i - 1]
        if (height > 0) != (height_before > 0):
            share = height_before / (height_before - height)
            kept.append(tuple(a + share * (b - a) for a, b in zip(before, point, strict=True)))
        if height <= 0:
            kept.append(point)
    return kept


def measure(polygon: list[Point]) -> float:
    """Share of the simplex: a length for two tokens, an area for three."""
    if len(polygon) < 2:
        return 0.0
    if len(polygon[0]) == 2:
        places = [point[0] for point in polygon]  # the cut of a segment appears twice
        return max(places) - min(places)
    pairs = zip(polygon, [*polygon[1:], polygon[0]], strict=True)
    return abs(sum(a[0] * b[1] - b[0] * a[1] for a, b in pairs))


def cells(contexts: Tensor) -> tuple[Tensor, Tensor]:
    """Noise [cells, V] and probability [cells] of the cells of contexts [m, V] (logits)."""
    vocab = contexts.shape[-1]
    corners = [tuple(float(i == j) for j in range(vocab)) for i in range(vocab)]
    found: list[list[Point]] = [corners]
    for logits in contexts:
        weights = (logits - logits.max()).exp().tolist()
        parts = []
        for polygon, v in itertools.product(found, range(vocab)):
            for other in range(vocab):
                if other != v and polygon:
                    polygon = clipped(polygon, v, other, weights)
            if weights[v] > 0 and measure(polygon) > 1e-17:
                parts.append(polygon)
        found = parts
    centres = [[sum(xs) / len(polygon) for xs in zip(*polygon, strict=True)] for polygon in found]
    shares = torch.tensor([measure(polygon) for polygon in found], dtype=torch.float64)
    assert abs(float(shares.sum()) - 1) < 1e-12
    return -torch.tensor(centres, dtype=torch.float64).log(), shares


def product_of(positions: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Independent positions: noise tables [rows, positions, V] and their probabilities [rows]."""
    index = torch.cartesian_prod(*[torch.arange(len(shares)) for _, shares in positions])
    columns = index.reshape(len(index), len(positions)).unbind(1)
    noise = [eps[i] for (eps, _), i in zip(positions, columns, strict=True)]
    shares = [shares[i] for (_, shares), i in zip(positions, columns, strict=True)]
    return torch.stack(noise, 1), torch.stack(shares).prod(0)
