"""Template-family record, shared word banks and small grammar helpers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Fill = Callable[[random.Random], dict[str, object]]

TRAIN = "train"
HELDOUT = "heldout"


@dataclass(frozen=True)
class Family:
    """One prompt template with a few phrasings and a random slot filler.

    Attributes:
        name: short name, unique within its domain.
        domain: ``math``, ``code`` or ``chat``.
        split: ``train`` or ``heldout``.
        variants: ``str.format`` templates that all use slots produced by ``fill``.
        fill: draws the slot values; its only source of randomness is the argument.
    """

    name: str
    domain: str
    split: str
    variants: tuple[str, ...]
    fill: Fill


# Each entry: first name, subject pronoun, possessive pronoun.
PEOPLE = (
    ("Maya", "she", "her"), ("Liam", "he", "his"), ("Sofia", "she", "her"),
    ("Noah", "he", "his"), ("Priya", "she", "her"), ("Omar", "he", "his"),
    ("Elena", "she", "her"), ("Jack", "he", "his"), ("Aisha", "she", "her"),
    ("Diego", "he", "his"), ("Hannah", "she", "her"), ("Kenji", "he", "his"),
    ("Grace", "she", "her"), ("Tom", "he", "his"), ("Nina", "she", "her"),
    ("Samuel", "he", "his"), ("Clara", "she", "her"), ("Victor", "he", "his"),
    ("Lucy", "she", "her"), ("Ben", "he", "his"), ("Fatima", "she", "her"),
    ("Oscar", "he", "his"), ("Julia", "she", "her"), ("Marcus", "he", "his"),
)  # fmt: skip

CITIES = (
    "Lisbon", "Kyoto", "Chicago", "Berlin", "Toronto", "Madrid", "Seattle", "Dublin",
    "Vienna", "Boston", "Prague", "Denver", "Oslo", "Rome", "Montreal", "Edinburgh",
)  # fmt: skip

SHOP_ITEMS = (
    "notebooks", "pens", "apples", "candles", "mugs", "sandwiches", "posters", "muffins",
    "erasers", "markers", "bagels", "stickers", "oranges", "folders", "balloons", "magnets",
)  # fmt: skip


def options(**slots: Sequence[object]) -> Fill:
    """Return a filler that draws every named slot independently and uniformly."""

    def fill(rng: random.Random) -> dict[str, object]:
        return {name: rng.choice(values) for name, values in slots.items()}

    return fill


def person(rng: random.Random) -> dict[str, object]:
    """Draw a person: slots ``name``, ``he``, ``He``, ``his`` and ``His`` that agree."""
    name, he, his = rng.choice(PEOPLE)
    return {"name": name, "he": he, "He": he.title(), "his": his, "His": his.title()}


def two_people(rng: random.Random) -> dict[str, object]:
    """Draw two different people: slots as in ``person`` plus ``other``."""
    first = person(rng)
    rest = [entry[0] for entry in PEOPLE if entry[0] != first["name"]]
    return {**first, "other": rng.choice(rest)}


def two_items(rng: random.Random) -> dict[str, object]:
    """Draw two different plural shop items: slots ``item`` and ``item2``."""
    item, item2 = rng.sample(SHOP_ITEMS, 2)
    return {"item": item, "item2": item2}


def article(word: str) -> str:
    """Return ``word`` with 'a' or 'an' chosen by its first letter (ordinary nouns only)."""
    return f"{'an' if word[0].lower() in 'aeiou' else 'a'} {word}"


def clock(minutes: int) -> str:
    """Format minutes after midnight as a 12-hour time such as ``9:05 a.m.``."""
    hour, minute = divmod(minutes % 1440, 60)
    return f"{(hour - 1) % 12 + 1}:{minute:02d} {'a.m.' if hour < 12 else 'p.m.'}"
