"""Draft-side latency on one GPU in Qwen3-8B shapes, random weights, nothing to download.

    python benchmarks/gpu.py [--block 16] [--rank 256] [--context 1024] [--json FILE]
    python benchmarks/gpu.py --checkpoint FOLDER --target Qwen/Qwen3-8B

Without a checkpoint: milliseconds of K passes of the xPress head beside the sequential Markov and
GRU heads (arXiv 2608.02438, Table 3), and what the draft side of a round is made of (its Figure 4).
Everything is a captured graph, as in serving. With a checkpoint: tokens per second of plain and
speculative decoding on held-out prompts (its Table 1). `--small --device cpu` is a dry run.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from world import make_head, random_block

import xpress_exp
from xpress_exp.decode import Arm, MeasuredPrompt, measure
from xpress_exp.decode.clock import Clock
from xpress_exp.drafter import DFlashDrafter
from xpress_exp.few_rows import FewRows, LayoutChoice
from xpress_exp.kv_cache import FixedRoom
from xpress_exp.metric.speed import tokens_per_second
from xpress_exp.solver import BlockState, CompiledSolver, JacobiSolver, SequentialSolver, Solver
from xpress_exp.task import BuiltinHeldout
from xpress_exp.types import ModelDims, SlotConvention, SlotMap
from xpress_exp.verifier import RejectionVerifier

PASSES = (1, 2, 4, 6, 8)


@dataclass(frozen=True)
class Shape:
    """Sizes of target and drafter."""

    hidden: int
    vocab: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    features: int


QWEN3_8B = Shape(4096, 151936, 12288, 32, 8, 128, 5, 5)
SMALL = Shape(64, 512, 128, 4, 2, 16, 2, 3)


def milliseconds(work: Callable[[], Any], device: torch.device, runs: int) -> float:
    """Median time of one call, after warm-up calls that compile and capture."""
    clock = Clock(device)
    for _ in range(3):
        work()
    marks = []
    for _ in range(runs):
        begun = clock.mark()
        work()
        marks.append((begun, clock.mark()))
    return statistics.median(clock.between(*pair) for pair in marks)


def on_device(block: BlockState, device: torch.device, dtype: torch.dtype) -> BlockState:
    return BlockState(
        block.base_logits.to(device),
        block.hidden.to(device, dtype),
        block.anchor.to(device),
        block.anchor_previous.to(device),
        block.slots,
    )


def heads(options: argparse.Namespace, shape: Shape, mode: str | None) -> dict[str, float]:
    """Milliseconds of one block by solver and head."""
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    slots = SlotMap(SlotConvention.FILL_IN, options.block)
    dims = ModelDims(shape.hidden, shape.vocab, shape.vocab, slots)
    embedding = torch.randn(shape.vocab, shape.hidden)
    block = on_device(random_block(slots, shape.hidden, shape.vocab), device, dtype)
    ways: dict[str, tuple[str, Solver]] = {
        "markov sequential": ("markov", SequentialSolver()),
        "gru sequential": ("gru", SequentialSolver()),
        **{f"xpress K={count}": ("xpress", JacobiSolver(count)) for count in PASSES},
    }
    found = {}
    for name, (kind, solver) in ways.items():
        head = make_head(kind, dims, embedding, options.rank).to(device, dtype)
        head.refold()
        head.make_fast(LayoutChoice())
        graph = CompiledSolver(solver, mode=mode)
        found[name] = milliseconds(
            lambda graph=graph, head=head: graph.propose(block, head, 0.0, None),
            device,
            options.runs,
        )
    return found


def drafter(options: argparse.Namespace, shape: Shape, mode: str | None) -> dict[str, float]:
    """Milliseconds of the drafter's pass over one block and of its logits."""
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    slots = SlotMap(SlotConvention.FILL_IN, options.block)
    dims = ModelDims(shape.hidden, shape.vocab, shape.vocab, slots)
    embedding = torch.randn(shape.vocab, shape.hidden, dtype=dtype, device=device)
    made = DFlashDrafter(
        dims,
        shape.features * shape.hidden,
        embedding,
        1e6 ** -torch.linspace(0, 1, shape.head_dim // 2),
        1.0,
        shape.layers,
        shape.intermediate,
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        mask_token_id=3,
    ).to(device, dtype)
    cache = made.new_cache()
    cache.ensure(options.context + slots.block_size)
    width = shape.features * shape.hidden
    made.extend(cache, torch.randn(1, options.context, width, dtype=dtype, device=device))
    starts = torch.tensor(cache.lengths, device=device)
    rows = FewRows(embedding)

    def states(anchor: Tensor, starts: Tensor) -> Tensor:
        return made.draft_in(FixedRoom(cache, starts, slots.block_size), anchor)

    def logits(hidden: Tensor) -> Tensor:
        return rows(hidden[:, slots.draft_slots]).float()

    anchor = torch.tensor([5], device=device)
    hidden = torch.randn(1, options.block, shape.hidden, dtype=dtype, device=device)
    compiled = [torch.compile(work, fullgraph=True, mode=mode) for work in (states, logits)]
    return {
        "drafter": milliseconds(lambda: compiled[0](anchor, starts), device, options.runs),
        "base logits": milliseconds(lambda: compiled[1](hidden), device, options.runs),
    }


def speed(options: argparse.Namespace) -> dict[str, float]:
    """Tokens per second of plain and speculative decoding, in turns, on held-out prompts."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(options.target, dtype=options.dtype)
    tokenizer = AutoTokenizer.from_pretrained(options.target)
    drafts = xpress_exp.load(options.checkpoint, model.to(options.device))
    drafts.target.tokenizer = tokenizer
    arm = Arm("arm", 0, drafts.model, drafts.solver, RejectionVerifier(), None)
    results = []
    for index, asked in enumerate(BuiltinHeldout().load(options.prompts)):
        ids = tuple(drafts.target.encode_chat(list(asked.messages)))
        prompt = MeasuredPrompt(asked.id, asked.domain, ids)
        results += measure(
            drafts.target,
            [arm],
            [prompt],
            temperature=options.temperature,
            max_new_tokens=options.tokens,
            index=index,
        )
    plain = tokens_per_second([result.baseline for result in results])
    ours = tokens_per_second([result.arms["arm"][1] for result in results])
    return {"plain tokens/s": plain, "speculative tokens/s": ours, "speed-up": ours / plain}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--block", type=int, default=16)
    parser.add_argument("--rank", type=int, default=256)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--small", action="store_true", help="tiny shapes without graph capture")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--target", help="name or folder of the checkpoint's target")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("no GPU here; a dry run is --small --device cpu --dtype float32")
    shape, mode = (SMALL, None) if options.small else (QWEN3_8B, "reduce-overhead")
    with torch.inference_mode():
        if options.checkpoint:
            found = speed(options)
        else:
            found = {**heads(options, shape, mode), **drafter(options, shape, mode)}
    name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    print(f"{name}, torch {torch.__version__}, {options.dtype}, block {options.block}")
    base = found.get("markov sequential")
    for label, value in found.items():
        over = f"{value / base:8.2f} x Markov" if base and "K=" in label else ""
        print(f"{label:<24} {value:10.3f} {over}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
