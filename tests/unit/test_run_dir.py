"""What is on disk is whole, recognisable and says where it comes from."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from xpress_exp.run_dir import (
    ArtefactError,
    RunDir,
    atomic_path,
    fingerprint,
    git_state,
    provenance,
    read_json,
    sha256_file,
    write_json,
    write_text,
)


def test_fingerprint_is_the_hash_of_canonical_json() -> None:
    content = {"b": [1, 2.5, None], "a": {"y": "x", "x": True}}
    text = '{"a":{"x":true,"y":"x"},"b":[1,2.5,null]}'
    assert fingerprint(content) == hashlib.sha256(text.encode()).hexdigest()[:10]
    assert fingerprint(dict(reversed(content.items()))) == fingerprint(content)
    assert fingerprint({**content, "c": 0}) != fingerprint(content)
    assert fingerprint([1, 2]) != fingerprint([2, 1])


def test_sha256_file(tmp_path: Path) -> None:
    content = b"x" * (1 << 20) + b"tail"  # more than one piece
    (tmp_path / "f").write_bytes(content)
    assert sha256_file(tmp_path / "f") == hashlib.sha256(content).hexdigest()


def test_atomic_path_replaces_on_success_only(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    with atomic_path(path) as temporary:
        temporary.write_text("old")
        assert not path.exists() and temporary.parent == path.parent
    with pytest.raises(TypeError), atomic_path(path) as temporary:
        temporary.write_text("half") + "not a number"  # type: ignore[operator]
    assert path.read_text() == "old"
    assert [file.name for file in path.parent.iterdir()] == ["file.txt"]
    write_text(path, "new")
    assert path.read_text() == "new"


def test_equal_json_is_an_equal_file(tmp_path: Path) -> None:
    write_json(tmp_path / "a", {"x": 1, "y": [2]})
    write_json(tmp_path / "b", {"y": [2], "x": 1})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert read_json(tmp_path / "a") == {"x": 1, "y": [2]}


@pytest.mark.parametrize("content", [b'{"a": ', b"\xff\xfe", b""])
def test_broken_json_is_an_error_that_names_the_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken.json").write_bytes(content)
    with pytest.raises(ArtefactError, match=r"broken\.json is not valid JSON"):
        read_json(tmp_path / "broken.json")
    with pytest.raises(ArtefactError, match=r"absent\.json is missing"):
        read_json(tmp_path / "absent.json")


def test_git_state_of_a_checkout_and_outside(tmp_path: Path) -> None:
    assert git_state(tmp_path) == {"commit": "unknown", "dirty": False}

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    (tmp_path / "f").write_text("1")
    git("add", "f")
    git("commit", "-q", "-m", "first")
    assert git_state(tmp_path) == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "untracked").write_text("2")
    assert git_state(tmp_path)["dirty"] is False
    (tmp_path / "f").write_text("2")
    assert git_state(tmp_path)["dirty"] is True


def test_provenance_says_what_ran() -> None:
    found = provenance({"extra": 1})
    assert found["extra"] == 1
    assert {"commit", "dirty", "argv", "python", "packages", "machine"} <= set(found)
    assert {"torch", "transformers", "lightning"} <= set(found["packages"])
    json.dumps(found)


def test_claim_once_and_only_for_the_same_science(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "xpress-b8-s0-0123456789")
    run.claim({"seed": 0, "layers": (1, 2)})
    assert run.name == "xpress-b8-s0-0123456789"
    assert read_json(run.config_file) == {"seed": 0, "layers": [1, 2]}
    assert "commit" in read_json(run.path / "provenance.json")
    run.claim({"layers": (1, 2), "seed": 0})
    with pytest.raises(ArtefactError, match=r"config\.json holds another configuration"):
        run.claim({"seed": 1, "layers": (1, 2)})
    assert read_json(run.config_file)["seed"] == 0


def test_done_marks(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    assert run.done("train") is None
    run.mark_done("train", {"model_sha256": "ab"})
    facts = run.done("train")
    assert facts is not None and facts["model_sha256"] == "ab" and "commit" in facts
    assert run.done("eval") is None
    (run.path / "train.done.json").write_text("{")
    with pytest.raises(ArtefactError, match=r"train\.done\.json"):
        run.done("train")


def test_names_of_a_run(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert run.last_checkpoint == tmp_path / "checkpoints" / "last.ckpt"
    assert run.eval_dir("abc") == tmp_path / "eval" / "abc"
    files = {run.config_file, run.model_file, run.metrics_file, run.failure_file}
    assert {file.name for file in files} == {
        "config.json",
        "model.safetensors",
        "metrics.jsonl",
        "failure.json",
    }
