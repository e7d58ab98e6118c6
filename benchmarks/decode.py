"""Decoding SmolLM2 on this CPU: passes of few tokens, plain decoding, and what a round costs
beyond its model passes.

    python benchmarks/decode.py [--quick]

The yardstick is Transformers: its own single-token pass and its own `generate`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from common import Figure, in_turns, main, ratio
from torch import Tensor
from transformers import DynamicCache
from world import World, world

from xpress_exp.decode import decode_autoregressive, decode_speculative
from xpress_exp.solver import JacobiSolver
from xpress_exp.verifier import GreedyVerifier

CONTEXT = 128


def _plain_single(view: World, ids: Tensor) -> Callable[[], Any]:
    """Transformers' own pass over one token behind a cached context."""
    model, cache = view.plain._model, DynamicCache()
    model(input_ids=ids[:, :CONTEXT], past_key_values=cache, use_cache=True)

    def run() -> None:
        model(input_ids=ids[:, CONTEXT : CONTEXT + 1], past_key_values=cache, use_cache=True)
        cache.crop(-1)

    return run


def _fast(view: World, ids: Tensor, count: int) -> Callable[[], Any]:
    """Our pass over `count` tokens behind the same context."""
    cache = view.fast.new_decode_cache()
    view.fast.forward(ids[:, :CONTEXT], cache, num_logits=1)

    def run() -> None:
        view.fast.forward(ids[:, CONTEXT : CONTEXT + count], cache)
        cache.crop(CONTEXT)

    return run


def passes(view: World, rounds: int) -> dict[str, Figure]:
    """Times of 1, 8 and 16 tokens over Transformers' single-token pass."""
    ids = torch.randint(100, 4000, (1, CONTEXT + 16), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        works = {"plain": _plain_single(view, ids)}
        works |= {str(count): _fast(view, ids, count) for count in (1, 2, 4, 8, 16)}
        taken = in_turns(works, rounds, warmup=3)
    note = f"behind {CONTEXT} tokens of context; plain is one token through Transformers"
    found = {
        f"verify{count}_over_plain_single": ratio(taken[str(count)], taken["plain"], note)
        for count in (1, 2, 4, 8, 16)
    }
    own = "against one token through the same fast pass: what a block costs a user of both"
    found["verify8_over_own_single"] = ratio(taken["8"], taken["1"], own)
    return found


def plain_decoding(view: World, rounds: int, tokens: int) -> dict[str, Figure]:
    """Greedy decoding of one token at a time against Transformers' `generate`."""
    [prompt] = view.prompts(1)
    ids = torch.tensor([prompt])
    seen: dict[str, list[int]] = {}

    def theirs() -> None:
        out = view.plain._model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False
        )
        seen["theirs"] = out[0, len(prompt) :].tolist()

    def ours() -> None:
        trace = decode_autoregressive(
            view.fast, prompt, temperature=0.0, max_new_tokens=tokens, generator=None
        )
        seen["ours"] = list(trace.tokens)

    taken = in_turns({"theirs": theirs, "ours": ours}, rounds)
    same = seen["ours"] == seen["theirs"]
    note = f"{len(seen['ours'])} tokens, prompt included; tokens {'equal' if same else 'DIFFER'}"
    return {
        "single_token_rate_over_transformers_generate": ratio(taken["theirs"], taken["ours"], note)
    }


class Timed:
    """Adds up the seconds spent in some methods; a method called within another counts once."""

    def __init__(self) -> None:
        self.seconds, self._inside = 0.0, False

    def wrap(self, owner: Any, name: str) -> None:
        inner = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            if self._inside:
                return inner(*arguments, **named)
            self._inside, begun = True, time.perf_counter()
            try:
                return inner(*arguments, **named)
            finally:
                self.seconds += time.perf_counter() - begun
                self._inside = False

        object.__setattr__(owner, name, timed)


def overhead(view: World, prompts: int, tokens: int) -> dict[str, Figure]:
    """Wall time of speculative rounds over the passes of target, drafter and head in them."""
    model = view.drafter(fast=True, head="xpress")
    timed = Timed()
    timed.wrap(view.fast, "forward")
    timed.wrap(model, "base_logits")
    for name in ("extend", "draft"):
        timed.wrap(model.drafter, name)
    for name in ("prepare", "code_from", "correct"):
        timed.wrap(model.head, name)
    walls, inside = [], []
    for prompt in view.prompts(prompts):
        trace = decode_speculative(
            view.fast,
            model,
            JacobiSolver(4),
            GreedyVerifier(),
            prompt,
            temperature=0.0,
            draft_temperature=0.0,
            max_new_tokens=tokens,
            generator=None,
        )
        # Prefill and the first context run before the rounds; only `decode_ms` has rounds.
        walls.append(trace.prefill_ms + trace.decode_ms)
        inside.append(timed.seconds * 1000.0)
        timed.seconds = 0.0
    note = "xPress head of rank 256, K=4, block 8; prefill included on both sides"
    return {"round_overhead": ratio(walls, inside, note)}


def figures(quick: bool) -> dict[str, Figure]:
    view = world()
    found = passes(view, 5 if quick else 40)
    found |= plain_decoding(view, 2 if quick else 8, 16 if quick else 64)
    return found | overhead(view, 2 if quick else 12, 16 if quick else 48)


if __name__ == "__main__":
    main(figures)
