"""The records of one variant on disk: claimed, appended round by round, closed when complete."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from xpress_exp.metric import EvalRecord, read_records, to_line
from xpress_exp.run_dir import ArtefactError, RunDir, provenance, read_json, write_json

# What may change between the start and the completion of an evaluation.
CODE_FACTS = ("commit", "dirty")


class EvalStore:
    """Folder <run>/eval/<fingerprint>: variant.json, <task>.jsonl, eval.done.json."""

    def __init__(self, folder: Path, task: str) -> None:
        self.folder = RunDir(folder)
        self.variant_file = folder / "variant.json"
        self.records_file = folder / f"{task}.jsonl"

    def is_done(self, model_sha256: str) -> bool:
        """Whether the evaluation is complete; raises ArtefactError when it was of other weights."""
        facts = self.folder.done("eval")
        if facts is not None and facts["model_sha256"] != model_sha256:
            raise ArtefactError(
                f"{self.folder.path} holds an evaluation of other weights than its run has now; "
                "delete that folder and rerun stages=[eval]"
            )
        return facts is not None

    def claim(self, facts: Mapping[str, Any]) -> None:
        """Write variant.json, or check that an unfinished evaluation was of the same variant.

        A resumed evaluation names all commits that took part. Raises ArtefactError naming the
        facts that differ.
        """
        facts = dict(facts)
        if self.records_file.exists():
            facts |= self._resumed(facts)
        write_json(self.variant_file, facts)
        write_json(self.folder.path / "provenance.json", provenance({"device": facts["device"]}))

    def _resumed(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Code facts of records that exist already joined with those of `facts`."""
        stored = read_json(self.variant_file)
        changed = [
            f"{key} {stored.get(key)!r} -> {value!r}"
            for key, value in facts.items()
            if key not in CODE_FACTS and stored.get(key) != value
        ]
        if changed:
            raise ArtefactError(
                f"{self.variant_file} was begun differently ({'; '.join(changed)}); "
                f"delete {self.folder.path} and rerun stages=[eval]"
            )
        commits = stored["commit"].split("+")
        known = commits if facts["commit"] in commits else [*commits, facts["commit"]]
        return {"commit": "+".join(known), "dirty": facts["dirty"] or stored["dirty"]}

    def recorded(self) -> set[tuple[str, float]]:
        """(prompt id, temperature) of the rounds on disk; raises ArtefactError on a broken file."""
        return {record.key for record in read_records(self.records_file)}

    def append(self, record: EvalRecord) -> None:
        """Add one line and flush it."""
        with self.records_file.open("a", encoding="utf-8") as file:
            file.write(to_line(record))

    def close(self, model_sha256: str) -> None:
        """Mark the evaluation complete."""
        count = len(self.recorded())
        self.folder.mark_done("eval", {"model_sha256": model_sha256, "num_records": count})


class Termination:
    """A SIGTERM that arrives while records are written takes effect when they are complete."""

    def __init__(self) -> None:
        self._writing = False
        self._requested = False

    def _handle(self, _signal: int, _frame: Any) -> None:
        self._requested = True
        if not self._writing:
            self._exit()

    def _exit(self) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle SIGTERM inside; only a main thread can, elsewhere nothing changes."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = signal.signal(signal.SIGTERM, self._handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, previous)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Hold SIGTERM back inside."""
        self._writing = True
        try:
            yield
        finally:
            self._writing = False
        if self._requested:
            self._exit()


def missing_rounds(
    recorded: Sequence[set[tuple[str, float]]],
    prompt_ids: Sequence[str],
    temperatures: Sequence[float],
) -> list[tuple[int, float, list[int]]]:
    """(prompt index, temperature, indices of variants without that round), temperatures outermost;
    rounds that all variants have are left out."""
    rounds = []
    for temperature in temperatures:
        for index, prompt_id in enumerate(prompt_ids):
            lacking = [i for i, keys in enumerate(recorded) if (prompt_id, temperature) not in keys]
            if lacking:
                rounds.append((index, temperature, lacking))
    return rounds
