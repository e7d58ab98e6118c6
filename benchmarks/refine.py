"""K parallel passes of the xPress head against heads that draft one token after the other.

    python benchmarks/refine.py [--quick]

Rank 256, block 16, the full vocabulary of SmolLM2, temperature 0; every head in its best memory
layout, with carried state and one product per step. Random weights: their time is that of trained
ones.
"""

from __future__ import annotations

from pathlib import Path

import torch
from common import Figure, in_turns, main, ratio
from world import RANK, make_head, random_block

from xpress_exp.few_rows import LayoutChoice
from xpress_exp.grid import compose_points
from xpress_exp.solver import JacobiSolver, SequentialSolver
from xpress_exp.types import ModelDims, SlotConvention, SlotMap

BLOCK, HIDDEN, VOCAB = 16, 576, 49152


@torch.inference_mode()
def figures(quick: bool) -> dict[str, Figure]:
    [cfg] = compose_points([])
    choice = LayoutChoice(Path(cfg.paths.cache))
    slots = SlotMap(SlotConvention.FILL_IN, BLOCK)
    dims = ModelDims(HIDDEN, VOCAB, VOCAB, slots)
    embedding = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(1))
    heads = {name: make_head(name, dims, embedding) for name in ("markov", "gru", "xpress")}
    for head in heads.values():
        head.make_fast(choice)
    blocks = [random_block(slots, HIDDEN, VOCAB, seed) for seed in range(4)]
    spent: dict[str, list[int]] = {}

    def draft(name: str, solver: JacobiSolver | SequentialSolver, head: str) -> None:
        spent[name] = [solver.propose(block, heads[head], 0.0, None).num_passes for block in blocks]

    works = {
        name: (lambda name=name, head=head: draft(f"{name}", SequentialSolver(), head))
        for name, head in (("markov", "markov"), ("gru", "gru"), ("sequential", "xpress"))
    }
    for count in (1, 2, 4, 6, 8):
        for stop in ("fixed_point", "never"):
            name, solver = f"{count} {stop}", JacobiSolver(count, stop=stop)
            works[name] = lambda name=name, solver=solver: draft(name, solver, "xpress")
    taken = in_turns(works, 5 if quick else 40, warmup=3)
    found = {}
    for count in (1, 2, 4, 6, 8):
        passes = sum(spent[f"{count} fixed_point"]) / len(blocks)
        note = f"rank {RANK}, block {BLOCK}; {passes:.1f} passes on average until the fixed point"
        found[f"xpress_k{count}_over_markov_sequential"] = ratio(
            taken[f"{count} fixed_point"], taken["markov"], note
        )
        unrolled = "all passes over all positions, as in a captured graph"
        found[f"xpress_k{count}_unrolled_over_markov_sequential"] = ratio(
            taken[f"{count} never"], taken["markov"], unrolled
        )
    found["xpress_k4_over_gru_sequential"] = ratio(taken["4 fixed_point"], taken["gru"])
    found["xpress_sequential_over_markov_sequential"] = ratio(taken["sequential"], taken["markov"])
    return found


if __name__ == "__main__":
    main(figures)
