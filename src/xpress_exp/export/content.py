"""What a checkpoint says, in the words of the config groups, whatever its layout."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xpress_exp.run_dir import ArtefactError
from xpress_exp.target import TargetModel
from xpress_exp.types import SlotConvention, SlotMap

PROBED_ROWS = 16


@dataclass(frozen=True)
class TargetFacts:
    """The target that a drafter belongs to; None where a checkpoint does not tell.

    name: option of the target group; name_or_path: where a hub target comes from. rope: its
    rope_parameters. tokenizer_sha256 and chat_template_sha256: what turned text into ids.
    probe: the first component of some rows of its embedding, to recognise its weights in any dtype.
    """

    name: str | None = None
    name_or_path: str | None = None
    hidden_size: int | None = None
    vocab_size: int | None = None
    num_layers: int | None = None
    architectures: tuple[str, ...] = ()
    rope: Mapping[str, Any] = field(default_factory=dict)
    tokenizer_sha256: str | None = None
    chat_template_sha256: str | None = None
    probe: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Content:
    """A drafter with its head.

    drafter, head: their config groups as far as they are told (`_target_` left out; drafter always
    has block_size, slot_convention and num_unused_slots). tensors: names of `DraftModel`'s state,
    'drafter.*' and 'head.*'. vocab_ids int64 [V']: reduced draft vocabulary. shared: copies of the
    target's matrices found beside the weights, by the names 'embed_tokens.weight' [V, H] and
    'lm_head.weight' [V', H]. num_passes: K of the Jacobi solver, None when it is not told.
    """

    drafter: Mapping[str, Any]
    head: Mapping[str, Any]
    target: TargetFacts
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    vocab_ids: Tensor | None = None
    shared: Mapping[str, Tensor] = field(default_factory=dict)
    num_passes: int | None = None

    @property
    def slots(self) -> SlotMap:
        """The slot layout; raises ValueError when it drafts nothing."""
        convention = SlotConvention(self.drafter["slot_convention"])
        return SlotMap(convention, self.drafter["block_size"], self.drafter["num_unused_slots"])


def told_facts(stored: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Fields of `TargetFacts` as JSON gave them back; raises ArtefactError naming `file` when one
    that is computed with is none."""
    known = {item.name for item in fields(TargetFacts)}
    told = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in stored.items()
        if key in known and value is not None
    }
    if not isinstance(told.get("rope", {}), Mapping):
        raise ArtefactError(f"{file}: target_facts.rope={told['rope']} must be rope_parameters")
    probe = told.get("probe")
    if probe is not None and (
        not isinstance(probe, tuple)
        or len(probe) != PROBED_ROWS
        or not all(isinstance(value, (int, float)) for value in probe)
    ):
        raise ArtefactError(f"{file}: target_facts.probe must be {PROBED_ROWS} numbers")
    return told


def target_facts(
    target: TargetModel, name: str | None = None, name_or_path: str | None = None
) -> TargetFacts:
    """Everything that a later reader can compare with its own target."""
    return TargetFacts(
        name=name,
        name_or_path=name_or_path,
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        num_layers=target.num_layers,
        architectures=tuple(getattr(target.config, "architectures", None) or ()),
        rope=dict(getattr(target.config, "rope_parameters", None) or {}),
        tokenizer_sha256=tokenizer_sha256(target.tokenizer),
        # Without a tokenizer the template is not known; its hash would be that of no text.
        chat_template_sha256=(
            None if target.tokenizer is None else target.identity.get("chat_template_sha256")
        ),
        probe=embedding_probe(target.embedding),
    )


def tokenizer_sha256(tokenizer: Any) -> str | None:
    """Hash over all tokens and their ids; None without a tokenizer."""
    if tokenizer is None:
        return None
    if hasattr(tokenizer, "get_vocab"):
        vocabulary: Any = sorted(tokenizer.get_vocab().items())
    else:
        vocabulary = [type(tokenizer).__name__, sorted(map(str, vars(tokenizer).items()))]
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()


def embedding_probe(embedding: Tensor) -> tuple[float, ...]:
    """First component of evenly spaced rows of embedding [V, H]."""
    rows = torch.linspace(0, len(embedding) - 1, PROBED_ROWS).long()
    return tuple(round(value, 6) for value in embedding[rows, 0].float().tolist())
