from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from xpress_exp.data.capture import capture_batch, capture_documents
from xpress_exp.data.datamodule import pack
from xpress_exp.data.document import ResponseDocuments
from xpress_exp.data.feature_cache import (
    cache_features,
    feature_bytes,
    features_identity,
    open_features,
    split_shards,
)
from xpress_exp.data.response import ResponseSet
from xpress_exp.run_dir import ArtefactError, fingerprint
from xpress_exp.target import TinyTarget, tiny_target
from xpress_exp.types import TargetOutput

SHARD_TOKENS = 40


class ChangedTarget(TinyTarget):
    """Its output passes through `change`, or raises after `forwards_left` forwards."""

    change: Callable[[TargetOutput], TargetOutput] = staticmethod(lambda output: output)
    forwards_left = 10**9

    def forward(self, *arguments: Any, **keywords: Any) -> TargetOutput:
        self.forwards_left -= 1
        if self.forwards_left < 0:
            raise KeyboardInterrupt
        return self.change(super().forward(*arguments, **keywords))


def single(target: TinyTarget, ids: Tensor) -> TargetOutput:
    return target.forward(ids[None], num_logits=0)


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "provenance.json"}


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_batched_capture_equals_one_by_one(family: str, responses: ResponseSet) -> None:
    target = tiny_target(family, dtype="float64")
    captured = capture_documents(responses.responses, target, torch.float64, batch_tokens=60)
    for document, response in zip(captured, responses.responses, strict=True):
        assert document.input_ids.tolist() == response.input_ids.tolist()
        assert document.loss_mask.tolist() == response.loss_mask.tolist()
        expected = single(target, document.input_ids)
        torch.testing.assert_close(document.features, expected.features[0])
        torch.testing.assert_close(document.last_hidden, expected.last_hidden[0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_cache_returns_every_document(
    tmp_path: Path, responses: ResponseSet, target: TinyTarget, dtype: str
) -> None:
    features = cache_features(responses, target, tmp_path, dtype, SHARD_TOKENS)
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert len(features) == len(responses.responses)
    for index in reversed(range(len(features))):
        document = features.document(index)
        assert document.features is not None
        assert document.last_hidden is not None
        assert document.features.dtype == getattr(torch, dtype)
        expected = single(target, document.input_ids)
        tolerance = 1e-5 if dtype == "float32" else 2e-2
        for stored, exact in (
            (document.features, expected.features[0]),
            (document.last_hidden, expected.last_hidden[0]),
        ):
            torch.testing.assert_close(stored.float(), exact, rtol=tolerance, atol=tolerance)
        assert document.loss_mask.tolist() == responses.responses[index].loss_mask.tolist()
    with pytest.raises(IndexError):
        features.document(len(features))


def test_resume_after_a_kill_gives_identical_bytes(tmp_path: Path, responses: ResponseSet) -> None:
    target = ChangedTarget()
    cache_features(responses, target, tmp_path / "straight", "float32", SHARD_TOKENS)
    target.forwards_left = 3
    with pytest.raises(KeyboardInterrupt):
        cache_features(responses, target, tmp_path / "killed", "float32", SHARD_TOKENS)
    identity = features_identity(responses, target, "float32", SHARD_TOKENS)
    with pytest.raises(ArtefactError, match=r"is not closed"):
        open_features(tmp_path / "killed", identity, responses)
    finished = len(list((tmp_path / "killed").glob("*.safetensors")))
    total = len(list((tmp_path / "straight").glob("*.safetensors")))
    target.forwards_left = total - finished
    cache_features(responses, target, tmp_path / "killed", "float32", SHARD_TOKENS)
    assert 0 < finished < total
    assert target.forwards_left == 0
    assert contents(tmp_path / "killed") == contents(tmp_path / "straight")


class Damage(NamedTuple):
    apply: Callable[[Path], None]
    message: str


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "flipped bit": Damage(_flip, "shard-00001.safetensors differs from its hash"),
    "truncated": Damage(lambda path: path.write_bytes(path.read_bytes()[:50]), "shard-00001"),
    "missing": Damage(lambda path: path.unlink(), "shard-00001.safetensors is missing"),
    "swapped": Damage(
        lambda path: shutil.copy(path.with_name("shard-00000.safetensors"), path) and None,
        "shard-00001.safetensors differs",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_shard_is_an_error_and_not_rebuilt(
    tmp_path: Path, responses: ResponseSet, target: TinyTarget, name: str
) -> None:
    cache_features(responses, target, tmp_path, "float32", SHARD_TOKENS)
    DAMAGES[name].apply(tmp_path / "shard-00001.safetensors")
    before = contents(tmp_path)
    with pytest.raises(ArtefactError, match=DAMAGES[name].message):
        cache_features(responses, target, tmp_path, "float32", SHARD_TOKENS)
    assert contents(tmp_path) == before


def test_tokens_are_compared_with_the_responses(
    tmp_path: Path, responses: ResponseSet, target: TinyTarget
) -> None:
    cache_features(responses, target, tmp_path, "float32", SHARD_TOKENS)
    first = responses.responses[0]
    changed = dataclasses.replace(first, prompt_ids=first.prompt_ids[::-1].copy())
    other = dataclasses.replace(responses, responses=(changed, *responses.responses[1:]))
    identity = features_identity(responses, target, "float32", SHARD_TOKENS)
    with pytest.raises(ArtefactError, match=r"shard-00000.safetensors holds other tokens"):
        open_features(tmp_path, identity, other)
    with pytest.raises(ArtefactError, match=r"manifest.json describes other features"):
        cache_features(other, target, tmp_path, "float32", SHARD_TOKENS)


def test_the_fingerprint_covers_what_decides_the_features(responses: ResponseSet) -> None:
    fewer = dataclasses.replace(responses, responses=responses.responses[1:])
    identities = [
        features_identity(responses, tiny_target(), "float32", 40),
        features_identity(fewer, tiny_target(), "float32", 40),
        features_identity(responses, tiny_target(layer_ids=(0,)), "float32", 40),
        features_identity(responses, tiny_target(seed=1), "float32", 40),
        features_identity(responses, tiny_target(), "float16", 40),
    ]
    assert len({fingerprint(identity) for identity in identities}) == len(identities)
    with pytest.raises(ValueError, match=r"data.features.dtype=int8"):
        features_identity(responses, tiny_target(), "int8", 40)


def _second_layer(output: TargetOutput, factor: float) -> TargetOutput:
    features = output.features.clone()
    features[..., features.shape[-1] // 2 :] *= factor
    return dataclasses.replace(output, features=features)


BROKEN_OUTPUTS: dict[str, tuple[Callable[[TargetOutput], TargetOutput], str]] = {
    "overflow": (lambda o: _second_layer(o, 1e6), "layer 1 .* data.features.dtype=bfloat16"),
    "nan": (lambda o: _second_layer(o, float("nan")), "layer 1 .* not finite; .* target.dtype"),
    "zero": (lambda o: _second_layer(o, 0.0), "layer 1 .* zero everywhere"),
    "short": (
        lambda o: dataclasses.replace(o, features=o.features[:, 1:]),
        "returned features for",
    ),
    "hidden": (
        lambda o: dataclasses.replace(o, last_hidden=o.last_hidden / 0),
        "final hidden state of document row-.* not finite",
    ),
}


@pytest.mark.parametrize("name", BROKEN_OUTPUTS)
def test_unusable_features_are_refused(tmp_path: Path, responses: ResponseSet, name: str) -> None:
    change, message = BROKEN_OUTPUTS[name]
    target = ChangedTarget()
    target.change = change
    with pytest.raises(ValueError, match=message):
        cache_features(responses, target, tmp_path, "float16", SHARD_TOKENS)
    assert not list(tmp_path.glob("*.safetensors"))


def test_a_short_disk_is_refused_with_the_estimate(
    tmp_path: Path,
    responses: ResponseSet,
    target: TinyTarget,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache_features(responses, target, tmp_path / "full", "float16", SHARD_TOKENS)
    stored = sum(p.stat().st_size for p in (tmp_path / "full").glob("*.safetensors"))
    estimate = feature_bytes(responses, target, "float16")
    shards = len(list((tmp_path / "full").glob("*.safetensors")))
    assert 0 < stored - estimate < 1024 * shards  # headers and offsets only
    usage = shutil.disk_usage(tmp_path)._replace(free=estimate - 1)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: usage)
    with pytest.raises(ValueError, match=r"set data.features.mode=online or paths.cache"):
        cache_features(responses, target, tmp_path / "short", "float16", SHARD_TOKENS)


def test_shards_are_consecutive_and_bounded(responses: ResponseSet) -> None:
    shards = split_shards(responses.responses, SHARD_TOKENS)
    assert [row for shard in shards for row in shard] == list(responses.responses)
    sizes = [sum(map(len, shard)) for shard in shards]
    assert max(sizes) <= SHARD_TOKENS
    joined = zip(sizes, shards[1:], strict=False)
    assert all(size + len(following[0]) > SHARD_TOKENS for size, following in joined)
    assert [len(shard) for shard in split_shards(responses.responses, 1)] == [1] * 12


def test_features_of_a_packed_batch_equal_one_by_one(responses: ResponseSet) -> None:
    target = tiny_target(dtype="float64")
    batch = pack(ResponseDocuments(responses), [3, 0, 7], 0, 2, (0, 0, 0))
    features, last_hidden = capture_batch(batch, target)
    parts = [single(target, batch.input_ids[batch.document_ids == d]) for d in range(3)]
    torch.testing.assert_close(features, torch.cat([part.features[0] for part in parts]))
    torch.testing.assert_close(last_hidden, torch.cat([part.last_hidden[0] for part in parts]))
