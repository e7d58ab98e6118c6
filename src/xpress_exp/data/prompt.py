"""Deterministic natural prompts drawn from the template families."""

from __future__ import annotations

import random
from dataclasses import dataclass

from xpress_exp.data.family import DOMAINS, FAMILIES, SPLITS, Family

# Every family is tested to yield at least this many distinct texts under any seed.
MAX_PER_FAMILY = 120
_MAX_REDRAWS = 2000


@dataclass(frozen=True)
class Prompt:
    """One user message.

    Attributes:
        id: ``<domain>/<family>-<number>``, e.g. ``math/ages-0042``; unique for one seed.
        family: name of the template family, unique within the domain.
        domain: ``math``, ``code`` or ``chat``.
        split: ``train`` or ``heldout``; no family belongs to both.
        text: the message itself, without any chat template.
    """

    id: str
    family: str
    domain: str
    split: str
    text: str


def families(split: str | None = None) -> tuple[Family, ...]:
    """Return the families of ``split`` (all of them for ``None``).

    Raises:
        ValueError: ``split`` is not a known split.
    """
    if split is None:
        return FAMILIES
    if split not in SPLITS:
        raise ValueError(f"split must be one of {SPLITS} or None, got {split!r}")
    return tuple(family for family in FAMILIES if family.split == split)


def num_families(split: str | None = None) -> int:
    """Return how many families ``split`` has; raises as ``families``."""
    return len(families(split))


def max_prompts(split: str) -> int:
    """Return the largest ``num_prompts`` that ``generate`` accepts; raises as ``families``."""
    rings = _rings(split)
    return len(rings) * min(len(ring) for ring in rings) * MAX_PER_FAMILY


def generate(split: str, num_prompts: int, seed: int) -> list[Prompt]:
    """Draw ``num_prompts`` distinct prompts, taking turns over domains and families.

    The result depends on the arguments only, and a shorter request with the same seed is a
    prefix of a longer one.

    Args:
        split: ``train`` or ``heldout``.
        num_prompts: how many prompts, from 0 to ``max_prompts(split)``.
        seed: any integer.

    Raises:
        ValueError: unknown split, or ``num_prompts`` is negative or above the maximum.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {SPLITS}, got {split!r}")
    limit = max_prompts(split)
    if not 0 <= num_prompts <= limit:
        raise ValueError(
            f"num_prompts must be between 0 and {limit} for split {split!r}, got {num_prompts}"
        )
    rings = _rings(split)
    seen: set[str] = set()
    prompts = []
    for turn in range(num_prompts):
        position, which = divmod(turn, len(rings))
        index, slot = divmod(position, len(rings[which]))
        prompts.append(_draw(rings[which][slot], index, seed, seen))
    return prompts


def _rings(split: str) -> list[list[Family]]:
    """Return the families of ``split`` grouped by domain, in listing order."""
    chosen = families(split)
    return [[family for family in chosen if family.domain == domain] for domain in DOMAINS]


def _draw(family: Family, index: int, seed: int, seen: set[str]) -> Prompt:
    """Draw the ``index``-th prompt of ``family``, avoiding and then extending ``seen``."""
    key = f"{family.domain}/{family.name}"
    rng = random.Random(f"{seed}|{key}|{index}")
    for attempt in range(_MAX_REDRAWS):
        # Stepping through the variants keeps the phrasings equally frequent.
        variant = family.variants[(index + attempt) % len(family.variants)]
        text = variant.format(**family.fill(rng))
        if text not in seen:
            seen.add(text)
            return Prompt(f"{key}-{index:04d}", family.name, family.domain, family.split, text)
    raise ValueError(f"family {key} has no more than {index} distinct prompts")
