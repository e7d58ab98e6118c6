from __future__ import annotations

import json
from pathlib import Path

import pytest
from datasets import Dataset

from xpress_exp.data import BuiltinPrompts, HfPrompts, JsonlPrompts
from xpress_exp.data.conversation import BrokenRow, PromptRow
from xpress_exp.data.prompt import generate


def test_builtin_rows_are_those_of_the_generator() -> None:
    rows = list(BuiltinPrompts("train", 7, seed=3))
    prompts = generate("train", 7, 3)
    assert [row.id for row in rows] == [prompt.id for prompt in prompts]
    assert isinstance(rows[2], PromptRow)
    assert rows[2].messages == ({"role": "user", "content": prompts[2].text},)


def test_builtin_identity_follows_arguments() -> None:
    base = BuiltinPrompts("train", 6, 0).identity
    assert base == BuiltinPrompts("train", 6, 0).identity
    others = [BuiltinPrompts("train", 6, 1), BuiltinPrompts("train", 7, 0)]
    assert all(other.identity != base for other in others)


def test_jsonl_counts_and_names_broken_rows(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    lines = [
        json.dumps({"prompt": "one", "id": "a", "domain": "math"}),
        "{not json",
        "",
        json.dumps({"turns": ["two"]}),
        json.dumps({"prompt": "three", "id": "a"}),
    ]
    path.write_bytes("\n".join(lines).encode() + b'\n{"prompt": "\xff"}\n')
    rows = list(JsonlPrompts(str(path)))
    assert [row.index for row in rows] == [0, 1, 2, 3, 4, 5]
    good = [row for row in rows if isinstance(row, PromptRow)]
    assert [(row.id, row.domain) for row in good] == [("a", "math"), ("row-000003", "text")]
    reasons = [row.reason for row in rows if isinstance(row, BrokenRow)]
    starts = ["line 2: not valid JSON", "line 3: the line is empty", "line 5: id 'a' repeats"]
    assert all(
        r.startswith(s) for r, s in zip(reasons, [*starts, "line 6: not valid"], strict=True)
    )


def test_jsonl_identity_is_content_not_path(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for path, text in zip(paths, ["x", "x", "y"], strict=True):
        path.write_text(json.dumps({"prompt": text}))
    first, same, other = (JsonlPrompts(str(path)).identity for path in paths)
    assert first == same != other


def test_jsonl_takes_the_first_rows(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": str(i)}) + "\n" for i in range(5)))
    assert len(list(JsonlPrompts(str(path), num_prompts=3))) == 3


def test_missing_file_names_the_key() -> None:
    with pytest.raises(FileNotFoundError, match=r"data.source.path=nowhere"):
        JsonlPrompts("nowhere")


def test_hf_reads_a_local_folder(tmp_path: Path) -> None:
    table = Dataset.from_dict({"chat": [[{"from": "human", "value": "hi"}], [], None]})
    table.to_parquet(str(tmp_path / "train.parquet"))
    source = HfPrompts(str(tmp_path), "train", "chat")
    good, *broken = list(source)
    assert isinstance(good, PromptRow)
    assert good.messages[0]["content"] == "hi"
    assert [isinstance(row, BrokenRow) for row in broken] == [True, True]
    assert "row 2" in broken[0].reason  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"data.source.column=text"):
        HfPrompts(str(tmp_path), "train", "text")
