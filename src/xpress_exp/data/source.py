"""Where training prompts come from. Iterating a source yields PromptRow or BrokenRow, in order."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from xpress_exp.data.conversation import (
    BrokenRow,
    PromptRow,
    conversation_of,
    parse_conversation,
)
from xpress_exp.data.prompt import generate
from xpress_exp.run_dir import sha256_file


class PromptSource(Protocol):
    """Iterable of rows; identity changes whenever a row changes."""

    @property
    def identity(self) -> dict[str, Any]: ...

    def __iter__(self) -> Iterator[PromptRow | BrokenRow]: ...


class BuiltinPrompts:
    """The project's own prompts; a smaller num_prompts is a prefix of a larger one.

    Raises ValueError when `num_prompts` exceeds what the generator can make.
    """

    def __init__(self, split: str, num_prompts: int, seed: int = 0) -> None:
        self.num_prompts, self.split, self.seed = num_prompts, split, seed
        self._prompts = generate(split, num_prompts, seed)

    @property
    def identity(self) -> dict[str, Any]:
        """Arguments and a hash of the texts: a changed template is another source."""
        texts = json.dumps([(prompt.id, prompt.text) for prompt in self._prompts])
        return {
            "kind": "builtin",
            "split": self.split,
            "seed": self.seed,
            "num_prompts": self.num_prompts,
            "sha256": hashlib.sha256(texts.encode()).hexdigest(),
        }

    def __iter__(self) -> Iterator[PromptRow | BrokenRow]:
        for index, prompt in enumerate(self._prompts):
            messages = ({"role": "user", "content": prompt.text},)
            yield PromptRow(index, prompt.id, prompt.domain, messages, prompt.family)


class JsonlPrompts:
    """A local JSON-lines file; each row has messages, conversations, turns or prompt.

    Optional keys of a row: id, domain. num_prompts takes the first rows. Raises FileNotFoundError.
    """

    def __init__(self, path: str, num_prompts: int | None = None, domain: str = "text") -> None:
        self.path, self.num_prompts, self.domain = Path(path), num_prompts, domain
        if not self.path.is_file():
            raise FileNotFoundError(
                f"data.source.path={path} is not a file; name a JSON-lines file of prompts"
            )

    @property
    def identity(self) -> dict[str, Any]:
        """Content, not path: a moved file is the same source."""
        return {
            "kind": "jsonl",
            "sha256": sha256_file(self.path),
            "num_prompts": self.num_prompts,
            "domain": self.domain,
        }

    def __iter__(self) -> Iterator[PromptRow | BrokenRow]:
        with self.path.open("rb") as file:
            lines = itertools.islice(file, self.num_prompts)
            yield from rows_of((_decode(line) for line in lines), self.domain, "line")


class HfPrompts:
    """A dataset read through `datasets`, from the hub or from a local folder.

    column holds a string, a list of strings, or a list of messages. Raises ValueError when the
    column does not exist, ModuleNotFoundError when `datasets` is not installed.
    """

    def __init__(
        self,
        path: str,
        split: str,
        column: str,
        num_prompts: int | None = None,
        name: str | None = None,
        revision: str | None = None,
        domain: str = "text",
    ) -> None:
        from datasets import load_dataset

        self.path, self.split, self.column, self.domain = path, split, column, domain
        table = load_dataset(path, name, split=split, revision=revision)
        if column not in table.column_names:
            raise ValueError(
                f"data.source.column={column} is not in {path}; it has {table.column_names}"
            )
        size = len(table) if num_prompts is None else min(num_prompts, len(table))
        self._values: list[Any] = list(table.select(range(size))[column])

    @property
    def identity(self) -> dict[str, Any]:
        """Where the rows came from and a hash of what they were."""
        digest = hashlib.sha256()
        for value in self._values:
            digest.update(json.dumps(value, sort_keys=True).encode() + b"\n")
        return {
            "kind": "hf",
            "path": self.path,
            "split": self.split,
            "column": self.column,
            "domain": self.domain,
            "sha256": digest.hexdigest(),
        }

    def __iter__(self) -> Iterator[PromptRow | BrokenRow]:
        yield from rows_of(({"prompt": value} for value in self._values), self.domain, "row")


def rows_of(rows: Iterable[Any], domain: str, unit: str) -> Iterator[PromptRow | BrokenRow]:
    """Turn decoded rows into PromptRow or BrokenRow; faults are named `<unit> <number>: ...`.

    A row that is a ValueError instance stands for a row that could not be decoded.
    """
    seen: dict[str, int] = {}
    for index, row in enumerate(rows):
        row_id = f"row-{index:06d}"
        try:
            if isinstance(row, ValueError):
                raise row
            messages = parse_conversation(conversation_of(row))
            row_id = str(row.get("id", row_id))
            if row_id in seen:
                raise ValueError(f"id {row_id!r} repeats that of {unit} {seen[row_id]}")
        except ValueError as error:
            yield BrokenRow(index, row_id, f"{unit} {index + 1}: {error}")
            continue
        seen[row_id] = index + 1
        yield PromptRow(index, row_id, str(row.get("domain", domain)), messages)


def _decode(line: bytes) -> Any:
    """The JSON value of a line, or the ValueError that says why there is none."""
    if not line.strip():
        return ValueError("the line is empty")
    try:
        return json.loads(line)
    except RecursionError:
        return ValueError("the JSON is nested too deeply")
    except ValueError as error:
        return ValueError(f"not valid JSON ({error})")
