from __future__ import annotations

import json
from pathlib import Path

import pytest
from datasets import Dataset

from xpress_exp.data.prompt import generate
from xpress_exp.task import BuiltinHeldout, JsonlTask, prompts_sha256


def write(path: Path, rows: list[object]) -> JsonlTask:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return JsonlTask(str(path), "bench")


def test_heldout_prompts_are_never_trained_on() -> None:
    prompts = BuiltinHeldout(seed=0).load(12)
    assert [prompt.id for prompt in prompts] == [p.id for p in generate("heldout", 12, 0)]
    trained = {prompt.text for prompt in generate("train", 300, 0)}
    assert not trained & {prompt.messages[0]["content"] for prompt in prompts}
    assert len({prompt.domain for prompt in prompts}) == 3


def test_heldout_needs_a_number() -> None:
    with pytest.raises(ValueError, match=r"decode.num_prompts"):
        BuiltinHeldout().load(None)


def test_the_order_is_that_of_published_harnesses(tmp_path: Path) -> None:
    texts = [f"question {number}" for number in range(25)]
    task = write(tmp_path / "bench.jsonl", [{"turns": [text, "second"]} for text in texts])
    expected = Dataset.from_dict({"text": texts}).shuffle(seed=0)["text"]
    loaded = task.load(10)
    assert [prompt.messages[0]["content"] for prompt in loaded] == list(expected)[:10]
    assert loaded[0].domain == "bench"
    assert len(loaded[0].messages) == 1
    assert len(task.load(None)) == len(task.load(1000)) == 25


def test_ids_name_lines(tmp_path: Path) -> None:
    task = write(tmp_path / "bench.jsonl", [{"turns": [str(number)]} for number in range(1, 6)])
    assert {p.id: p.messages[0]["content"] for p in task.load(None)} == {
        f"bench-{number:04d}": str(number) for number in range(1, 6)
    }
    assert JsonlTask(str(tmp_path / "bench.jsonl")).name == "bench"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"turns": []}, "non-empty list"),
        ({"turns": [3]}, "list of strings"),
        ({"prompt": "x"}, "list of strings"),
        ([], "list of strings"),
        ({"turns": [" "]}, "first turn is empty"),
    ],
)
def test_a_broken_row_names_file_and_line(tmp_path: Path, row: object, reason: str) -> None:
    task = write(tmp_path / "bench.jsonl", [{"turns": ["fine"]}, row])
    with pytest.raises(ValueError, match=rf"bench.jsonl line 2: .*{reason}"):
        task.load(None)


def test_broken_json_empty_and_missing_files(tmp_path: Path) -> None:
    task = write(tmp_path / "bench.jsonl", [])
    with pytest.raises(ValueError, match=r"holds no prompt"):
        task.load(5)
    task.path.write_text('{"turns": ["fine"]}\n{oops\n')
    with pytest.raises(ValueError, match=r"line 2"):
        task.load(5)
    with pytest.raises(FileNotFoundError, match=r"task.path=nowhere"):
        JsonlTask("nowhere")


def test_the_hash_covers_texts_and_order(tmp_path: Path) -> None:
    task = write(tmp_path / "bench.jsonl", [{"turns": [str(number)]} for number in range(4)])
    prompts = task.load(None)
    assert prompts_sha256(prompts) == prompts_sha256(task.load(4))
    assert prompts_sha256(prompts) != prompts_sha256(prompts[::-1])
    assert prompts_sha256(prompts) != prompts_sha256(prompts[:3])
