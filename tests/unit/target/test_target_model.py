"""TargetModel against plain Transformers calls of the same weights."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from xpress_exp.target import TargetModel, TinyTarget, tiny_target
from xpress_exp.target.tiny import ByteTokenizer

TEXT = [5, 9, 4, 13, 6, 6, 8, 20, 31]
CLOSE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-9}


def reference(target: TargetModel, ids: list[int]) -> Any:
    """Transformers' own output with all hidden states."""
    with torch.no_grad():
        return target._model(torch.tensor([ids]), output_hidden_states=True, use_cache=False)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("layer_ids", [(0, 2), (2, 1), (0,)])
def test_features_are_transformers_hidden_states(
    make_target: Callable[..., TinyTarget], family: str, layer_ids: tuple[int, ...]
) -> None:
    target = make_target(family, num_layers=4, layer_ids=layer_ids)
    expected = reference(target, TEXT)
    found = target.forward(torch.tensor([TEXT]))
    wanted = torch.cat([expected.hidden_states[layer + 1] for layer in layer_ids], -1)
    torch.testing.assert_close(found.features, wanted, **CLOSE)
    torch.testing.assert_close(found.last_hidden, expected.hidden_states[-1], **CLOSE)
    assert found.logits is not None and found.logits.dtype == torch.float32
    torch.testing.assert_close(found.logits, expected.logits.float(), rtol=1e-6, atol=1e-6)
    assert target.feature_size == found.features.shape[-1] == 32 * len(layer_ids)


def test_final_hidden_state_gives_the_logits(make_target: Callable[..., TinyTarget]) -> None:
    target = make_target("qwen3")
    found = target.forward(torch.tensor([TEXT]))
    assert found.logits is not None
    law = found.last_hidden @ target.lm_head.T
    torch.testing.assert_close(found.logits, law.float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("count", [None, 0, 1, 3])
def test_num_logits(make_target: Callable[..., TinyTarget], count: int | None) -> None:
    target = make_target()
    found = target.forward(torch.tensor([TEXT]), num_logits=count).logits
    if count == 0:
        assert found is None
        return
    assert found is not None
    everything = reference(target, TEXT).logits.float()
    expected = everything if count is None else everything[:, -count:]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.property("P11d")
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_cropped_cache_continues_like_a_fresh_forward(
    make_target: Callable[..., TinyTarget], family: str
) -> None:
    target = make_target(family)
    cache = target.new_cache()
    target.forward(torch.tensor([TEXT[:3]]), cache)
    target.forward(torch.tensor([[40, 41, 42, 43]]), cache)  # only the first is accepted
    assert cache.length == 7
    cache.crop(4)
    assert cache.length == 4
    text = [*TEXT[:3], 40, *TEXT[4:]]
    found = target.forward(torch.tensor([text[4:]]), cache)
    expected = target.forward(torch.tensor([text]))
    assert found.logits is not None and expected.logits is not None
    torch.testing.assert_close(found.features, expected.features[:, 4:], **CLOSE)
    torch.testing.assert_close(found.logits, expected.logits[:, 4:], rtol=1e-6, atol=1e-6)
    assert cache.length == len(text)


def test_cache_cannot_be_cropped_to_more_than_it_holds(
    make_target: Callable[..., TinyTarget],
) -> None:
    target = make_target()
    cache = target.new_cache()
    target.forward(torch.tensor([TEXT[:3]]), cache)
    cache.crop(3)
    with pytest.raises(ValueError, match="cache of 3 tokens to 4"):
        cache.crop(4)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_padded_rows_equal_single_rows(
    make_target: Callable[..., TinyTarget], family: str, side: str
) -> None:
    target = make_target(family)
    texts = [TEXT, TEXT[2:5], TEXT[:1]]
    tokens = torch.zeros(3, len(TEXT), dtype=torch.int64)
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    for row, text in enumerate(texts):
        place = slice(len(TEXT) - len(text), None) if side == "left" else slice(0, len(text))
        tokens[row, place], mask[row, place] = torch.tensor(text), True
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    found = target.forward(tokens, attention_mask=mask, position_ids=positions)
    assert bool(found.features.isfinite().all())
    for row, text in enumerate(texts):
        single = target.forward(torch.tensor([text]))
        torch.testing.assert_close(found.features[row, mask[row]], single.features[0], **CLOSE)
        torch.testing.assert_close(
            found.last_hidden[row, mask[row]], single.last_hidden[0], **CLOSE
        )


def test_hooks_hold_nothing_back(make_target: Callable[..., TinyTarget]) -> None:
    target = make_target()
    first = target.forward(torch.tensor([TEXT]))
    kept = first.features.clone()
    target.forward(torch.tensor([TEXT[::-1]]))
    assert target._captured == {}
    assert torch.equal(first.features, kept)


@pytest.mark.parametrize(
    ("facts", "field"),
    [
        ({"hidden_size": 33}, "hidden_size=33"),
        ({"vocab_size": 9}, "vocab_size=9"),
        ({"num_layers": 2}, "num_layers=2"),
        ({"pad_token_id": 7}, "pad_token_id=7"),
        ({"stop_token_ids": [2, 3]}, r"stop_token_ids=\[2, 3\]"),
        ({"no_such_option": 1}, "no_such_option"),
    ],
)
def test_wrong_facts_are_refused_by_name(
    plain_llama: LlamaForCausalLM, facts: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValueError, match=rf"^target\.{field}[^\n]*$"):
        TargetModel(plain_llama, ByteTokenizer(8, 2), "plain", (0, 1), {}, facts)


def test_right_facts_and_nulls_pass(plain_llama: LlamaForCausalLM) -> None:
    right = {"hidden_size": 16, "vocab_size": 8, "num_layers": 3, "stop_token_ids": [2]}
    unknown = {"pad_token_id": None, "stop_token_ids": None}
    for facts in (right, unknown, None):
        TargetModel(plain_llama, ByteTokenizer(8, 2), "plain", (0, 1), {}, facts)


@pytest.mark.parametrize("layer_ids", [(2,), (0, 0), ()])
def test_unusable_feature_layers_are_refused(layer_ids: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="target_layer_ids"):
        tiny_target(layer_ids=layer_ids)


def test_the_target_is_frozen_and_no_module(make_target: Callable[..., TinyTarget]) -> None:
    target = make_target()
    assert not isinstance(target, torch.nn.Module)
    assert not target._model.training
    assert not any(parameter.requires_grad for parameter in target._model.parameters())
    assert not target.embedding.requires_grad and not target.lm_head.requires_grad


def test_tiny_weights_are_a_function_of_the_arguments() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first, second, other = tiny_target(seed=4), tiny_target(seed=4), tiny_target(seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    weights = [t._model.model.layers[1].mlp.up_proj.weight for t in (first, second, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    assert first.identity == second.identity != other.identity
    with pytest.raises(ValueError, match=r"target\.family='gpt'"):
        tiny_target("gpt")


def test_byte_tokenizer_by_hand() -> None:
    encoded = ByteTokenizer(14, 2).apply_chat_template([{"role": "user", "content": "A"}])
    assert encoded["input_ids"] == [4 + byte % 10 for byte in b"u:A;"]
    assert ByteTokenizer(14, 2).decode([4, 9]) == "4 9"
    target = tiny_target(vocab_size=14)
    assert target.encode_chat([{"role": "user", "content": "A"}]) == encoded["input_ids"]
    assert target.decode_text([4, 9]) == "4 9"


def test_wrapping_a_model_again_leaves_no_hooks_behind() -> None:
    """A wrapper that is gone captures nothing; its copy under other stop tokens still does."""
    model = tiny_target()._model
    hooks = [layer._forward_hooks for layer in model.get_decoder().layers]  # type: ignore

    def held() -> int:
        gc.collect()
        return sum(len(each) for each in hooks)

    before = held()
    for _ in range(3):
        TargetModel(model, ByteTokenizer(64, 2), "again", (0,), {})
    assert held() == before
    copied = TargetModel(model, ByteTokenizer(64, 2), "again", (0,), {}).with_stop_tokens([7])
    assert held() == before + 1
    assert copied.forward(torch.tensor([TEXT])).features.shape == (1, len(TEXT), 32)


def test_several_chat_templates_are_hashed() -> None:
    tokenizer: Any = ByteTokenizer(64, 2)
    tokenizer.chat_template = {"default": "a", "tools": "b"}
    found = TargetModel(tiny_target()._model, tokenizer, "t", (0,), {}).identity
    tokenizer.chat_template = {"default": "a", "tools": "c"}
    other = TargetModel(tiny_target()._model, tokenizer, "t", (0,), {}).identity
    assert found["chat_template_sha256"] != other["chat_template_sha256"]
