from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xpress_exp.data import BuiltinPrompts
from xpress_exp.data.conversation import BrokenRow, PromptRow
from xpress_exp.data.regenerate import EncodedRow, regenerate, split_chunks
from xpress_exp.data.response import GenerationSettings, ResponseSet, responses_identity
from xpress_exp.run_dir import ArtefactError, fingerprint
from xpress_exp.target import TinyTarget, generate_batch, tiny_target
from xpress_exp.types import TargetOutput

GENERATION = GenerationSettings(1.0, 1.0, max_new_tokens=6, batch_size=3, seed=0)
MAX_LENGTH = 40


class Rows:
    """A source of given texts; None stands for a broken row."""

    def __init__(self, texts: list[str | None]) -> None:
        self.texts = texts
        self.identity: dict[str, Any] = {"texts": texts}

    def __iter__(self) -> Iterator[PromptRow | BrokenRow]:
        for index, text in enumerate(self.texts):
            if text is None:
                yield BrokenRow(index, f"r{index}", f"line {index + 1}: bad")
            else:
                yield PromptRow(index, f"r{index}", "d", ({"role": "user", "content": text},))


class StoppingTarget(TinyTarget):
    """Raises after a number of forwards, as a kill would."""

    forwards_left = 10**9

    def forward(self, *arguments: Any, **keywords: Any) -> TargetOutput:
        self.forwards_left -= 1
        if self.forwards_left < 0:
            raise KeyboardInterrupt
        return super().forward(*arguments, **keywords)


TEXTS: list[str | None] = ["abc" * (1 + i % 7) for i in range(10)]


def run(target: TinyTarget, folder: Path, texts: list[str | None] = TEXTS) -> ResponseSet:
    return regenerate(Rows(texts), target, GENERATION, MAX_LENGTH, 0.2, folder)


def contents(folder: Path) -> dict[str, bytes]:
    names = ("chunk-*", "manifest.json", "identity.json")
    return {path.name: path.read_bytes() for name in names for path in folder.glob(name)}


@pytest.mark.parametrize("forwards", [0, 3, 7, 13, 20])
def test_resume_after_a_kill_gives_identical_bytes(tmp_path: Path, forwards: int) -> None:
    run(tiny_target(), tmp_path / "straight")
    target = StoppingTarget()
    target.forwards_left = forwards
    with pytest.raises(KeyboardInterrupt):
        run(target, tmp_path / "killed")
    assert not (tmp_path / "killed" / "manifest.json").exists()
    target.forwards_left = 10**9
    run(target, tmp_path / "killed")
    assert contents(tmp_path / "killed") == contents(tmp_path / "straight")
    target.forwards_left = 0  # a closed folder needs no target pass
    run(target, tmp_path / "killed")


def test_responses_are_the_target_s_with_a_seed_per_row(tmp_path: Path, target: TinyTarget) -> None:
    made = run(target, tmp_path)
    for response in made.responses:
        text = TEXTS[response.index]
        prompt = target.encode_chat([{"role": "user", "content": text or ""}])
        assert response.prompt_ids.tolist() == prompt
        (alone,) = generate_batch(target, [prompt], 6, 1.0, 1.0, [GENERATION.row_seed(response.id)])
        assert tuple(response.response_ids.tolist()) == alone.ids


def test_loss_mask_starts_at_the_generation_boundary(tmp_path: Path, target: TinyTarget) -> None:
    response = run(target, tmp_path).responses[0]
    boundary = len(response.prompt_ids)
    assert response.input_ids[boundary:].tolist() == response.response_ids.tolist()
    assert not response.loss_mask[:boundary].any()
    assert response.loss_mask[boundary:].all()


def test_every_row_is_accounted_for(tmp_path: Path, target: TinyTarget) -> None:
    texts = [*TEXTS, None, "x" * 100, None]
    made = run(target, tmp_path, texts)
    counts = made.counts
    assert counts["input"] == len(texts)
    assert counts["success"] + counts["failed"] + counts["skipped"] == counts["input"]
    assert counts["skipped"] == 1
    assert counts["failed"] >= 2
    by_id = {entry["id"]: entry for entry in made.reasons}
    assert by_id["r10"]["reason"] == "line 11: bad"
    assert "too long" in by_id["r11"]["reason"]
    assert len(by_id) + len(made.responses) == len(texts)
    assert counts["response_tokens"] == sum(len(row.response_ids) for row in made.responses)


def test_an_empty_response_counts_as_failed(tmp_path: Path, target: TinyTarget) -> None:
    one_token = GenerationSettings(1.0, 1.0, max_new_tokens=1, batch_size=3, seed=0)
    with pytest.raises(ValueError, match=r"10 of 10 rows .* data.max_broken_share=0.2"):
        regenerate(Rows(TEXTS), target, one_token, MAX_LENGTH, 0.2, tmp_path)


def test_too_many_broken_rows_are_fatal_before_generation(tmp_path: Path) -> None:
    target = StoppingTarget()
    target.forwards_left = 0
    with pytest.raises(ValueError, match=r"3 of 6 rows \(50.0%\).*line 1: bad"):
        run(target, tmp_path, [None, None, None, "a", "b", "c"])


@pytest.mark.parametrize(("texts", "message"), [([], "no row"), (["x" * 99], "data.max_length=40")])
def test_nothing_to_answer_is_an_error(
    tmp_path: Path, target: TinyTarget, texts: list[str | None], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run(target, tmp_path, texts)


def test_a_folder_of_other_data_is_never_reused(tmp_path: Path, target: TinyTarget) -> None:
    run(target, tmp_path)
    with pytest.raises(ArtefactError, match=r"manifest.json describes other data"):
        regenerate(Rows(TEXTS), target, GENERATION, MAX_LENGTH + 1, 0.2, tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(ArtefactError, match=r"identity.json belongs to other data"):
        run(target, tmp_path, TEXTS[:-1])


def test_the_fingerprint_covers_what_decides_the_responses() -> None:
    source = BuiltinPrompts("train", 4, 0).identity
    plain = tiny_target().identity
    other_template = {**plain, "chat_template_sha256": "0"}
    hotter = GenerationSettings(1.5, 1.0, max_new_tokens=6, batch_size=3, seed=0)
    identities = [
        responses_identity(source, plain, GENERATION, 512),
        responses_identity(source, plain, GENERATION, 1024),
        responses_identity(source, other_template, GENERATION, 512),
        responses_identity(source, tiny_target(seed=1).identity, GENERATION, 512),
        responses_identity(source, plain, hotter, 512),
        responses_identity(BuiltinPrompts("train", 5, 0).identity, plain, GENERATION, 512),
    ]
    assert len({fingerprint(identity) for identity in identities}) == len(identities)


@pytest.mark.parametrize("closed", [True, False])
def test_a_damaged_chunk_is_named(tmp_path: Path, target: TinyTarget, closed: bool) -> None:
    run(target, tmp_path)
    path = tmp_path / "chunk-00001.jsonl"
    whole = path.read_text()
    if not closed:
        (tmp_path / "manifest.json").unlink()
    for damaged in (whole[: len(whole) // 2], whole.split("\n", 1)[1]):
        path.write_text(damaged)
        with pytest.raises(ArtefactError, match=r"chunk-00001.jsonl"):
            run(target, tmp_path)
        assert path.read_text() == damaged


def test_a_changed_token_breaks_the_hash(tmp_path: Path, target: TinyTarget) -> None:
    run(target, tmp_path)
    path = tmp_path / "chunk-00000.jsonl"
    row, rest = path.read_text().split("\n", 1)
    content = json.loads(row)
    content["response_ids"][0] += 1
    path.write_text(json.dumps(content, separators=(",", ":")) + "\n" + rest)
    with pytest.raises(ArtefactError, match=r"differs from its hash"):
        run(target, tmp_path)


def test_chunks_keep_every_row_and_waste_little() -> None:
    rng = np.random.default_rng(0)
    rows = [
        EncodedRow(PromptRow(i, f"r{i}", "d", ()), tuple(range(rng.integers(1, 50))))
        for i in range(101)
    ]
    chunks = split_chunks(rows, 4)
    assert sorted(item.row.index for chunk in chunks for item in chunk) == list(range(101))
    assert max(len(chunk) for chunk in chunks) == 4
    padded = sum(len(chunk) * max(len(item.prompt_ids) for item in chunk) for chunk in chunks)
    assert padded < 1.1 * sum(len(item.prompt_ids) for item in rows)
    # A window depends on its own rows only: more input never changes finished windows.
    assert split_chunks(rows[:64], 4) == chunks[:16]
