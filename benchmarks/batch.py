"""Batched speculative decoding against the plain one-prompt path, and against the fast one.

python benchmarks/batch.py [--quick]
"""

from __future__ import annotations

from collections.abc import Sequence

from common import Figure, in_turns, main, ratio
from world import World, world

from xpress_exp.builders import DraftModel
from xpress_exp.decode import Drafting, Request, decode_autoregressive, decode_batch
from xpress_exp.decode.loop import decode_speculative
from xpress_exp.solver import ParallelSolver
from xpress_exp.target import TargetModel
from xpress_exp.types import SampleTrace
from xpress_exp.verifier import GreedyVerifier

BATCH = 8


def one_by_one(
    target: TargetModel, model: DraftModel, prompts: Sequence[list[int]], tokens: int
) -> list[SampleTrace]:
    return [
        decode_speculative(
            target,
            model,
            ParallelSolver(),
            GreedyVerifier(),
            prompt,
            temperature=0.0,
            draft_temperature=0.0,
            max_new_tokens=tokens,
            generator=None,
        )
        for prompt in prompts
    ]


def figures(quick: bool) -> dict[str, Figure]:
    view: World = world()
    tokens = 12 if quick else 32
    prompts = view.prompts(BATCH)
    plain, fast = view.drafter(fast=False), view.drafter(fast=True)
    drafting = Drafting(fast, ParallelSolver(), GreedyVerifier(), 0.0)
    seen: dict[str, list[tuple[int, ...]]] = {}

    def keep(name: str, traces: list[SampleTrace]) -> None:
        seen[name] = [trace.tokens for trace in traces]

    def batched(drafts: Drafting | None) -> list[SampleTrace]:
        return decode_batch(
            view.fast,
            [Request(tuple(prompt)) for prompt in prompts],
            drafting=drafts,
            batch=BATCH,
            temperature=0.0,
            max_new_tokens=tokens,
        )

    def baseline() -> list[SampleTrace]:
        return [
            decode_autoregressive(
                view.fast, prompt, temperature=0.0, max_new_tokens=tokens, generator=None
            )
            for prompt in prompts
        ]

    works = {
        "plain1": lambda: keep("plain1", one_by_one(view.plain, plain, prompts, tokens)),
        "fast1": lambda: keep("fast1", one_by_one(view.fast, fast, prompts, tokens)),
        "batch": lambda: keep("batch", batched(drafting)),
        "ar1": lambda: keep("ar1", baseline()),
        "ar_batch": lambda: keep("ar_batch", batched(None)),
    }
    taken = in_turns(works, 1 if quick else 4, warmup=0)
    same = all(tokens == seen["plain1"] for tokens in seen.values())
    note = f"{len(prompts)} prompts, block 8, T=0, tokens {'equal' if same else 'DIFFER'}"
    pairs = {
        "batch8_rate_over_plain_batch1": ("plain1", "batch"),
        "batch8_rate_over_fast_batch1": ("fast1", "batch"),
        "fast_batch1_rate_over_plain_batch1": ("plain1", "fast1"),
        "drafting_rate_over_none_batch1": ("ar1", "fast1"),
        "drafting_rate_over_none_batch8": ("ar_batch", "batch"),
    }
    return {name: ratio(taken[over], taken[under], note) for name, (over, under) in pairs.items()}


if __name__ == "__main__":
    main(figures)
