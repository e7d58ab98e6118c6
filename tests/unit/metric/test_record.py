import json
from pathlib import Path
from typing import Any

import pytest

from xpress_exp.metric import read_records, to_line
from xpress_exp.metric.record import first_divergence
from xpress_exp.run_dir import ArtefactError


@pytest.mark.parametrize(
    ("left", "right", "place"),
    [((1, 2, 3), (1, 2, 3), None), ((1, 2), (1, 5), 1), ((1, 2), (1, 2, 3), 2), ((), (4,), 0)],
)
def test_first_divergence(left: tuple[int, ...], right: tuple[int, ...], place: int | None) -> None:
    assert first_divergence(left, right) == place
    assert first_divergence(right, left) == place


def test_lines_come_back_equal(tmp_path: Path, trace: Any, record: Any) -> None:
    path = tmp_path / "task.jsonl"
    records = [
        record(trace([(2, 3)], decode_ms=1 / 3), trace(step_ms=[0.1, 0.2, 0.3]), "a"),
        record(trace(), trace(), "a", temperature=1.0),
    ]
    path.write_text("".join(to_line(item) for item in records))
    assert read_records(path) == records


def test_line_keeps_divergence_at_temperature_zero_only(trace: Any, record: Any) -> None:
    differing = (trace(tokens=[7, 8, 9]), trace(tokens=[7, 8, 1]))
    assert json.loads(to_line(record(*differing)))["first_divergence"] == 2
    assert json.loads(to_line(record(*differing, temperature=1.0)))["first_divergence"] is None


def test_no_file_is_no_record(tmp_path: Path) -> None:
    assert read_records(tmp_path / "task.jsonl") == []


def test_broken_files_are_named(tmp_path: Path, trace: Any, record: Any) -> None:
    path, line = tmp_path / "task.jsonl", to_line(record(trace(), trace()))
    changed = line.replace('"schema_version":1', '"schema_version":99')
    for text, place in [
        (line + line[:-9], "task.jsonl:2"),
        (line[:-1], "cut short"),
        (line + line, "repeats"),
        (changed, "schema"),
        (line.replace('"prompt_tokens"', '"prompt_token"'), "task.jsonl:1"),
        ("[1]\n", "task.jsonl:1"),
    ]:
        path.write_text(text)
        with pytest.raises(ArtefactError, match=place):
            read_records(path)
