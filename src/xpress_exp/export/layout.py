"""What a checkpoint layout is: tensor names, and config.json in both directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from xpress_exp.export.content import Content

Names = Mapping[str, str]
MARKOV_GATES = {"gated": "gate_proj", "rnn": "joint_proj"}
# Copies of the target's matrices: compared with the target's own, never loaded.
SHARED = ("embed_tokens.weight", "lm_head.weight")
CONFIDENCE = ("confidence_head.proj.weight", "confidence_head.proj.bias")


def no_tensors(_content: Content) -> dict[str, Tensor]:
    """Nothing beside drafter and head."""
    return {}


def no_names(_head: Mapping[str, Any]) -> Names:
    """No head, no names."""
    return {}


@dataclass(frozen=True)
class Layout:
    """write: content and name of a dtype -> config.json. read: config.json and its path -> content
    without tensors; raises ArtefactError for what it does not understand.

    head_names: head group -> names of its parameters, ours to theirs. prefix stands before the
    drafter's names. extra: further tensors by their name in the file (a name of the head is
    replaced). left_out: names that may stand in a file and are not used.
    """

    name: str
    write: Callable[[Content, str], dict[str, Any]]
    read: Callable[[Mapping[str, Any], Path], Content]
    head_names: Callable[[Mapping[str, Any]], Names] = no_names
    extra: Callable[[Content], dict[str, Tensor]] = no_tensors
    prefix: str = ""
    left_out: tuple[str, ...] = ()

    def name_in_file(self, name: str, head: Mapping[str, Any]) -> str:
        """Name in the file of a parameter of ours, 'drafter.*' or 'head.*'."""
        part, _, rest = name.partition(".")
        if part == "drafter":
            return self.prefix + rest
        return self.head_names(head)[rest]


def markov_names(prefix: str, variant: str) -> dict[str, str]:
    """Names of a Markov head in DeepSpec, speculators and vLLM."""
    names = {"token_table": f"{prefix}markov_w1.weight", "readout": f"{prefix}markov_w2.weight"}
    gate = MARKOV_GATES.get(variant)
    if gate is not None:
        names |= {f"{gate}.{part}": f"{prefix}{gate}.{part}" for part in ("weight", "bias")}
    return names


def causal_mix(content: Content) -> Tensor:
    """The mixer [r, P, P] for layouts that read the diagonal as well: a strict one has a zero
    diagonal there."""
    diagonal = -1 if content.head["mix"] == "strict" else 0
    return content.tensors["head.mix"].tril(diagonal)
