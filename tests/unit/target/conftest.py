"""A folder as `save_pretrained` leaves it: a tiny Llama with a word-level tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = {"<pad>": 0, "<s>": 1, "</s>": 2, "user": 3, "assistant": 4, "red": 5, "blue": 6, ":": 7}
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }} : {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}assistant :{% endif %}"
)


@pytest.fixture(scope="session")
def plain_llama() -> LlamaForCausalLM:
    torch.manual_seed(2)
    config = LlamaConfig(
        hidden_size=16,
        vocab_size=8,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=24,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config)


@pytest.fixture
def model_folder(tmp_path: Path, plain_llama: LlamaForCausalLM) -> Path:
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    fast.chat_template = TEMPLATE
    folder = tmp_path / "model"
    plain_llama.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder
