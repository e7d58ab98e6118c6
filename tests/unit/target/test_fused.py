"""The fused decoder against the Transformers model that it reads its weights from."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from xpress_exp.few_rows import LayoutChoice
from xpress_exp.kv_cache import KVCache
from xpress_exp.target.fused import FusedDecoder, unfit
from xpress_exp.target.tiny import TinyTarget, tiny_target

CLOSE = {"rtol": 2e-4, "atol": 2e-5}


def both(family: str, **options: object) -> tuple[TinyTarget, TinyTarget]:
    plain, fast = (tiny_target(family, **options) for _ in range(2))
    assert fast.make_fast(LayoutChoice()) == ""
    return plain, fast


def ids(count: int, seed: int = 0) -> Tensor:
    return torch.randint(4, 64, (1, count), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("chunks", [[7], [5, 1, 1], [4, 3, 2, 1], [1, 6]])
@torch.inference_mode()
def test_chunks_equal_one_plain_pass(family: str, chunks: list[int]) -> None:
    plain, fast = both(family)
    tokens = ids(sum(chunks))
    expected = plain.forward(tokens)
    assert expected.logits is not None
    cache = fast.new_decode_cache()
    assert isinstance(cache, KVCache)
    found = [fast.forward(part, cache) for part in tokens.split(chunks, 1)]
    logits = torch.cat([part.logits for part in found if part.logits is not None], 1)
    torch.testing.assert_close(logits, expected.logits, **CLOSE)
    features = torch.cat([part.features for part in found], 1)
    torch.testing.assert_close(features, expected.features, **CLOSE)
    hidden = torch.cat([part.last_hidden for part in found], 1)
    torch.testing.assert_close(hidden, expected.last_hidden, **CLOSE)
    assert cache.length == sum(chunks)


@pytest.mark.property("P11d")
@torch.inference_mode()
def test_rejected_tokens_leave_no_trace() -> None:
    plain, fast = both("qwen3")
    tokens = ids(9)
    cache = fast.new_decode_cache()
    fast.forward(tokens[:, :4], cache)
    fast.forward(ids(5, seed=1), cache)
    cache.crop(4)
    found = fast.forward(tokens[:, 4:], cache).logits
    expected = plain.forward(tokens).logits
    assert found is not None and expected is not None
    torch.testing.assert_close(found, expected[:, 4:], **CLOSE)


@torch.inference_mode()
def test_ragged_rows_equal_their_own_passes() -> None:
    """Rows of 3 and 6 tokens that go on together, each against a pass of its own."""
    plain, fast = both("llama")
    rows = [ids(3, seed=2), ids(6, seed=3)]
    cache = fast.new_decode_cache(2)
    assert isinstance(cache, KVCache)
    cache.ensure(16)
    for index, row in enumerate(rows):
        view = cache.row(index)
        fast.forward(row, view)
        cache.lengths[index] = view.length
    block = torch.cat([ids(4, seed=4), ids(4, seed=5)])
    found = fast.forward(block, cache).logits
    assert found is not None
    for index, row in enumerate(rows):
        alone = plain.forward(torch.cat([row, block[index : index + 1]], 1)).logits
        assert alone is not None
        torch.testing.assert_close(found[index], alone[0, -4:], **CLOSE)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "gpt2"}, "model_type=gpt2"),
        ({"hidden_act": "gelu"}, "hidden_act=gelu"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope_type=dynamic"),
    ],
)
def test_other_architectures_are_refused_by_name(change: dict[str, object], reason: str) -> None:
    target = tiny_target()
    config = SimpleNamespace(**{**target.config.to_dict(), "model_type": "llama", **change})
    assert reason in unfit(config)
    with pytest.raises(ValueError, match="does not fit"):
        FusedDecoder(None, config, LayoutChoice())


def test_layout_choice_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(512, 256)
    first = LayoutChoice(tmp_path)([weight])
    monkeypatch.setattr("xpress_exp.few_rows._fastest", lambda *_: pytest.fail("measured again"))
    assert LayoutChoice(tmp_path)([weight]) == first
