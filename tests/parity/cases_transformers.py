"""Transformers' own assisted generation: another implementation of lossless greedy decoding."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from fixture import noise
from generation import trained_generation
from table import TRANSFORMERS, Case, Key
from tensors import prefixed


def cases() -> Iterator[Case]:
    made = trained_generation()
    weights = made.target_weights()
    # Another model with the same vocabulary, often but not always of the same opinion.
    assistant = {
        name: weight + 0.03 * noise(index, *weight.shape).to(weight) * (".layers." in name)
        for index, (name, weight) in enumerate(weights.items())
    }
    ours = {}
    for name in made.prompts:
        ours[f"{name}.plain"] = torch.tensor(made.plain[name].tokens)
        ours[f"{name}.with our drafts"] = torch.tensor(made.speculative[name].tokens)
    request = {
        **prefixed("target", weights),
        **prefixed("assistant", assistant),
        **{f"prompt.{name}": torch.tensor(ids) for name, ids in made.prompts.items()},
    }
    facts = {
        "target": made.target_facts(),
        "limit": made.limit,
        "stop": sorted(made.target.stop_token_ids),
    }
    key = Key(TRANSFORMERS, "assisted generation", "any", "forward")
    yield Case(key, "assisted", request, ours, 0.0, facts)
