"""Tiny random targets of the supported families, for tests and smoke runs; no download."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from xpress_exp.target.model import TargetModel


class ByteTokenizer:
    """Bytes of the text modulo the vocabulary, behind the few ids kept for special tokens."""

    chat_template = "{{ byte tokenizer }}"
    num_reserved = 4

    def __init__(self, vocab_size: int, eos_token_id: int) -> None:
        self.vocab_size = vocab_size
        self.eos_token_id = eos_token_id

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, str]], **_options: Any
    ) -> dict[str, list[int]]:
        text = "".join(f"{message['role'][0]}:{message['content']};" for message in messages)
        span = self.vocab_size - self.num_reserved
        return {"input_ids": [self.num_reserved + byte % span for byte in text.encode()]}

    def decode(self, ids: Sequence[int], **_options: Any) -> str:
        return " ".join(str(token) for token in ids)


class TinyTarget(TargetModel):
    """A random Llama or Qwen3 of a few thousand weights.

    family: 'llama' | 'qwen3'; the weights are a pure function of the arguments. Ids 0..3 are
    reserved: 0 pad, 1 unused, 2 stop, 3 free for a mask token. `scale` stretches the logits, so
    that the law is neither flat nor one-hot.
    """

    def __init__(
        self,
        layer_ids: Sequence[int] = (0, 1),
        family: str = "llama",
        hidden_size: int = 32,
        vocab_size: int = 64,
        num_layers: int = 3,
        num_heads: int = 2,
        seed: int = 0,
        scale: float = 8.0,
        dtype: str | torch.dtype = "float32",
        device: str = "cpu",
        cache_dir: str | None = None,  # noqa: ARG002  one signature for all targets
        **facts: Any,
    ) -> None:
        model = _random_model(family, hidden_size, vocab_size, num_layers, num_heads, seed, scale)
        dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        arguments = (
            family,
            hidden_size,
            vocab_size,
            num_layers,
            num_heads,
            seed,
            scale,
            str(dtype),
        )
        identity = {"source": "tiny", "arguments": [str(argument) for argument in arguments]}
        tokenizer = ByteTokenizer(vocab_size, eos_token_id=2)
        super().__init__(
            model.to(dtype=dtype, device=device),
            tokenizer,
            f"tiny-{family}",
            layer_ids,
            identity,
            facts,
        )


def _random_model(
    family: str,
    hidden_size: int,
    vocab_size: int,
    num_layers: int,
    num_heads: int,
    seed: int,
    scale: float,
) -> Any:
    """The Transformers model; raises ValueError for an unknown family."""
    kinds = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}
    if family not in kinds:
        raise ValueError(f"target.family={family!r} is unknown; use one of {sorted(kinds)}")
    make_config, make_model = kinds[family]
    config = make_config(
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=1,
        head_dim=hidden_size // num_heads,
        intermediate_size=2 * hidden_size,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        max_position_embeddings=4096,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make_model(config)
        for parameter in model.parameters():
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=hidden_size**-0.5)
        torch.nn.init.normal_(model.get_input_embeddings().weight, std=scale / hidden_size)
    return model


def tiny_target(family: str = "llama", **arguments: Any) -> TinyTarget:
    """A `TinyTarget` of the given family."""
    return TinyTarget(family=family, **arguments)
