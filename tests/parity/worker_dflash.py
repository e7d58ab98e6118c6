"""Runs in the interpreter that has z-lab's `dflash`: its classes on the weights of a request."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import dflash.model as peer
import torch
from tensors import float64_throughout, gradients, group, serve
from torch import Tensor
from torch.nn import functional
from transformers import Qwen3Config, Qwen3ForCausalLM

# Their clock waits for a GPU.
peer._cuda_time = time.perf_counter


def build(tensors: dict[str, Tensor], facts: dict[str, Any]) -> Any:
    """Their drafter with the request's weights, in the request's dtype."""
    config = Qwen3Config(**facts["architecture"])
    config.dflash_config = facts["draft"]
    config.num_target_layers = 3
    weights = group(tensors, "weight")
    model = peer.DFlashDraftModel(config).to(weights["fc.weight"].dtype)
    model.load_state_dict(weights)
    return model.eval()


def block_embedding(tensors: dict[str, Tensor], anchor: Tensor, facts: dict[str, Any]) -> Tensor:
    """Embeddings [1, B, H] of the anchor id and B-1 masks."""
    ids = torch.full((1, facts["draft"]["block_size"]), facts["draft"]["mask_token_id"])
    ids[0, 0] = anchor
    return functional.embedding(ids, tensors["embedding"])


def all_blocks(model: Any, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Tensor:
    """Hidden states [n, B, H], one call per block: its document before the anchor, no mask."""
    hidden = []
    for anchor, start in zip(tensors["anchors"], tensors["starts"], strict=True):
        positions = torch.arange(int(anchor - start) + facts["draft"]["block_size"])[None]
        hidden.append(
            model(
                position_ids=positions,
                noise_embedding=block_embedding(tensors, tensors["input_ids"][anchor], facts),
                target_hidden=tensors["features"][None, start:anchor],
            )
        )
    return torch.cat(hidden)


def forward(tensors: dict[str, Tensor], facts: dict[str, Any]) -> dict[str, Tensor]:
    return {"hidden": all_blocks(build(tensors, facts), tensors, facts)}


def gradient(tensors: dict[str, Tensor], facts: dict[str, Any]) -> dict[str, Tensor]:
    model = build(tensors, facts)
    with float64_throughout():
        hidden = all_blocks(model, tensors, facts)
        return gradients((hidden * tensors["cotangent"]).sum(), dict(model.named_parameters()))


def cached(tensors: dict[str, Tensor], facts: dict[str, Any]) -> dict[str, Tensor]:
    """Their decoding: new features and the block enter the cache, then the block is cropped."""
    model, hidden, start = build(tensors, facts), [], 0
    cache = peer._make_cache(model.config)
    rounds = zip(tensors["features"].split(facts["chunks"], 1), tensors["anchors"], strict=True)
    with torch.no_grad():
        for chunk, anchor in rounds:
            end = start + chunk.shape[1]
            states = model(
                target_hidden=chunk,
                noise_embedding=block_embedding(tensors, anchor, facts),
                position_ids=torch.arange(start, end + facts["draft"]["block_size"])[None],
                past_key_values=cache,
                use_cache=True,
            )
            peer._crop_to(cache, end)
            hidden.append(states)
            start = end
    return {"hidden": torch.cat(hidden)}


def generate(tensors: dict[str, Tensor], facts: dict[str, Any]) -> dict[str, Tensor]:
    """Whole generations; of the rounds, those that hold a full block."""
    target = Qwen3ForCausalLM(Qwen3Config(**facts["target"])).eval()
    target.load_state_dict(group(tensors, "target"))
    model, answer = build(tensors, facts), {}
    for name, prompt in group(tensors, "prompt").items():
        done = peer.dflash_generate(
            model, target, prompt[None], facts["limit"], facts["stop"], return_stats=True
        )
        tokens = done.output_ids[0, len(prompt) :]
        answer[f"{name}.tokens"] = answer[f"{name}.tokens, our drafts"] = tokens
        kept, held = [], 0
        for produced in done.acceptance_lengths:
            if held + facts["draft"]["block_size"] > facts["limit"]:
                break
            kept.append(produced)
            held += produced
        answer[f"{name}.rounds"] = torch.tensor(kept)
    return answer


if __name__ == "__main__":
    serve(
        Path(sys.argv[1]),
        "dflash",
        {"forward": forward, "gradient": gradient, "cached": cached, "generate": generate},
    )
