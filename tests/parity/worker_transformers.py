"""Runs in our own interpreter, without our code: assisted generation of Transformers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from tensors import group, serve
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM


def build(weights: dict[str, Tensor], facts: dict[str, Any]) -> Any:
    model = Qwen3ForCausalLM(Qwen3Config(**facts["target"])).eval()
    model.load_state_dict(weights)
    return model


def assisted(tensors: dict[str, Tensor], facts: dict[str, Any]) -> dict[str, Tensor]:
    """Greedy tokens of every prompt, drafted by the assistant.

    Raises RuntimeError when the assistant saved no call of the target: nothing would be verified.
    """
    target = build(group(tensors, "target"), facts)
    assistant = build(group(tensors, "assistant"), facts)
    answer, calls, tokens = {}, [], 0
    target.register_forward_hook(lambda *_arguments: calls.append(1))
    for name, prompt in group(tensors, "prompt").items():
        found = target.generate(
            prompt[None],
            attention_mask=torch.ones_like(prompt)[None],
            assistant_model=assistant,
            do_sample=False,
            max_new_tokens=facts["limit"],
            eos_token_id=facts["stop"],
            pad_token_id=0,
        )[0, len(prompt) :]
        tokens += len(found)
        answer[f"{name}.plain"] = answer[f"{name}.with our drafts"] = found
    if len(calls) >= tokens:
        raise RuntimeError(f"{len(calls)} calls of the target for {tokens} tokens")
    return answer


if __name__ == "__main__":
    serve(Path(sys.argv[1]), "transformers", {"assisted": assisted})
