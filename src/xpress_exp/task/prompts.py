"""Task prompts: what is asked, in which order, and a hash that says two evals asked the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from xpress_exp.data.prompt import generate

# Published harnesses take `dataset.shuffle(seed=0).select(range(n))`.
SHUFFLE_SEED = 0


@dataclass(frozen=True)
class TaskPrompt:
    """One conversation to continue; messages are {role, content} objects."""

    id: str
    domain: str
    messages: tuple[dict[str, str], ...]


class Task(Protocol):
    """A named list of prompts."""

    name: str

    def load(self, num_prompts: int | None) -> list[TaskPrompt]: ...


class BuiltinHeldout:
    """The project's own prompts from template families that are never trained on.

    load raises ValueError when more prompts are asked for than the generator can make.
    """

    def __init__(self, seed: int = 0, name: str = "heldout") -> None:
        self.seed, self.name = seed, name

    def load(self, num_prompts: int | None) -> list[TaskPrompt]:
        """The first `num_prompts`; domains take turns, so any number is balanced."""
        if num_prompts is None:
            raise ValueError(f"task {self.name} has no end; set decode.num_prompts to a number")
        return [
            TaskPrompt(prompt.id, prompt.domain, ({"role": "user", "content": prompt.text},))
            for prompt in generate("heldout", num_prompts, self.seed)
        ]


class JsonlTask:
    """A file with one {"turns": [...]} a line, of which the first turn is asked.

    name defaults to the file's stem and is the domain of its prompts. Raises FileNotFoundError;
    load raises ValueError naming file and line of a broken row.
    """

    def __init__(self, path: str, name: str | None = None) -> None:
        self.path = Path(path)
        self.name = name or self.path.stem
        if not self.path.is_file():
            raise FileNotFoundError(
                f"task.path={path} is not a file; name a JSON-lines file with turns"
            )

    def load(self, num_prompts: int | None) -> list[TaskPrompt]:
        """The first `num_prompts` after shuffling with seed 0, or all when there are fewer."""
        lines = self.path.read_bytes().splitlines()
        prompts = [self._prompt(number, line) for number, line in enumerate(lines, start=1)]
        if not prompts:
            raise ValueError(f"{self.path} holds no prompt; give a file with at least one line")
        order = np.random.default_rng(SHUFFLE_SEED).permutation(len(prompts))
        return [prompts[index] for index in order[:num_prompts]]

    def _prompt(self, number: int, line: bytes) -> TaskPrompt:
        try:
            text = _first_turn(json.loads(line))
        except ValueError as error:
            raise ValueError(
                f'{self.path} line {number}: {error}; each line must be {{"turns": ["..."]}}'
            ) from error
        messages = ({"role": "user", "content": text},)
        return TaskPrompt(f"{self.name}-{number:04d}", self.name, messages)


def prompts_sha256(prompts: Sequence[TaskPrompt]) -> str:
    """Hash of ids and messages in order: equal hashes mean that the same was asked."""
    content = [(prompt.id, prompt.domain, prompt.messages) for prompt in prompts]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _first_turn(row: Any) -> str:
    turns = row.get("turns") if isinstance(row, dict) else None
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str):
        raise ValueError("turns must be a non-empty list of strings")
    if not turns[0].strip():
        raise ValueError("the first turn is empty")
    return turns[0]
