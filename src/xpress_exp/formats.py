"""What every exchange format can hold, as one table. Nothing heavy is imported: the checks before a
run and the exporter read the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Layout = tuple[str, int]  # drafter.slot_convention, drafter.num_unused_slots


@dataclass(frozen=True)
class Holding:
    """heads: names of head options, layouts: slot layouts; None means any. learned_mask and
    reduced_vocab: whether there is a place for drafter.mask_token_id=null and a draft_vocab."""

    heads: tuple[str, ...] | None
    layouts: tuple[Layout, ...] | None
    learned_mask: bool = False
    reduced_vocab: bool = False


FILL_IN, SHIFT, DOMINO_SHIFT = ("fill_in", 0), ("shift", 0), ("shift", 1)
FORMATS: dict[str, Holding] = {
    "hf": Holding(None, None, learned_mask=True, reduced_vocab=True),
    "zlab": Holding(("none",), (FILL_IN,)),
    "deepspec": Holding(("none", "markov"), (SHIFT, FILL_IN)),
    "domino": Holding(("gru",), (FILL_IN, DOMINO_SHIFT)),
    "speculators": Holding(("none", "markov", "xpress"), (FILL_IN, SHIFT), reduced_vocab=True),
    "vllm_xpress": Holding(("xpress",), (FILL_IN,)),
}


@dataclass(frozen=True)
class Limit:
    """A setting that the named formats cannot hold although head and layout are theirs."""

    formats: tuple[str, ...]
    field: str
    is_beyond: Callable[[Mapping[str, Any], Mapping[str, Any]], bool]
    why: str


def _fills_in(drafter: Mapping[str, Any]) -> bool:
    return drafter["slot_convention"] == "fill_in"


LIMITS = (
    Limit(
        ("speculators", "vllm_xpress"),
        "head.mlp",
        lambda _d, head: head.get("mlp") == "silu",
        "has a refiner of three matrices (head.mlp=swiglu), no place for the paper's two",
    ),
    Limit(
        ("deepspec",),
        "drafter.slot_convention",
        lambda drafter, head: _fills_in(drafter) and head["name"] == "none",
        "means shift by this class without a head",
    ),
    Limit(
        ("deepspec",),
        "head.variant",
        lambda drafter, head: _fills_in(drafter) and head.get("variant") in ("gated", "rnn"),
        "is served with slot_convention=fill_in for a vanilla head only",
    ),
    Limit(
        ("speculators",),
        "head.variant",
        lambda drafter, head: _fills_in(drafter) and head.get("variant") == "rnn",
        "would start the state at the anchor's own slot of slot_convention=fill_in",
    ),
)


def refusal(name: str, drafter: Mapping[str, Any], head: Mapping[str, Any]) -> str | None:
    """Why format `name` cannot hold this drafter and head (their config groups), as one line
    'field=value: reason', or None when it can."""
    found = _beyond(name, drafter, head)
    if found is None:
        return None
    (group, key), why = found[0].split("."), found[1]
    value = (head if group == "head" else drafter)[key]
    others = [other for other in FORMATS if _beyond(other, drafter, head) is None]
    return f"{found[0]}={value}: export={name} {why}; use export={' or '.join(others)}"


def _beyond(
    name: str, drafter: Mapping[str, Any], head: Mapping[str, Any]
) -> tuple[str, str] | None:
    """Field that format `name` has no place for, and why."""
    holding = FORMATS[name]
    layout = (drafter["slot_convention"], drafter["num_unused_slots"])
    if holding.heads is not None and head["name"] not in holding.heads:
        return "head.name", f"holds only {' and '.join(holding.heads)}"
    if holding.layouts is not None and layout not in holding.layouts:
        is_known = layout[0] in {convention for convention, _ in holding.layouts}
        field = "drafter.num_unused_slots" if is_known else "drafter.slot_convention"
        return field, f"holds only {' or '.join(_worded(item) for item in holding.layouts)}"
    if drafter["mask_token_id"] is None and not holding.learned_mask:
        return "drafter.mask_token_id", "has no place for a learned mask embedding"
    if drafter["draft_vocab"] is not None and not holding.reduced_vocab:
        return "drafter.draft_vocab", "has no place for a reduced vocabulary"
    for limit in LIMITS:
        if name in limit.formats and limit.is_beyond(drafter, head):
            return limit.field, limit.why
    return None


def _worded(layout: Layout) -> str:
    convention, unused = layout
    return f"{convention} with num_unused_slots={unused}" if unused else convention
