"""How often rounding changes a greedy token: block verification against one-token decoding, and
bfloat16 against float32.

    python benchmarks/bf16_mismatch.py [--prompts 4] [--tokens 32] [--block 8] [key=value ...]

All passes read the float32 model's own greedy text (teacher forced), so that one flip does not
cascade. key=value are overrides of the configuration, such as trainer.accelerator=gpu.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from torch import Tensor

from xpress_exp.builders import build_part, build_target
from xpress_exp.decode import decode_autoregressive
from xpress_exp.grid import compose_points
from xpress_exp.target import TargetModel


def logits_of(target: TargetModel, prompt: list[int], text: Sequence[int], width: int) -> Tensor:
    """Logits [len(text) - 1, V] of text[1:], read `width` tokens at a time after the prompt.

    The first token is left out: the same pass over the prompt predicts it in every case.
    """
    cache = target.new_cache()
    target.forward(torch.tensor([prompt], device=target.device), cache=cache, num_logits=0)
    rows = []
    for block in torch.tensor([list(text[:-1])], device=target.device).split(width, 1):
        logits = target.forward(block, cache=cache).logits
        assert logits is not None
        rows.append(logits[0])
    return torch.cat(rows)


def told(name: str, found: list[Tensor], reference: list[Tensor], margins: Tensor) -> str:
    """One line: share of changed tokens and how sure the float32 model was where they changed."""
    ours, theirs = torch.cat(found), torch.cat(reference)
    flips = ours.argmax(-1) != theirs.argmax(-1)
    widest = f"{float(margins[flips].max()):.3f}" if bool(flips.any()) else "-"
    error = float((ours - theirs).abs().max())
    count, total = int(flips.sum()), len(flips)
    return (
        f"{name:<34} {count:>4} of {total} tokens ({count / total:.2%})"
        f"   widest margin flipped {widest}   largest logit difference {error:.2g}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--block", type=int, default=8, help="tokens of a verified block, N + 1")
    parser.add_argument("overrides", nargs="*", help="key=value of the configuration")
    options = parser.parse_args()
    cfgs = [
        compose_points([*options.overrides, f"target.dtype={dtype}"])[0]
        for dtype in ("float32", "bfloat16")
    ]
    wide, narrow = (build_target(cfg) for cfg in cfgs)
    passes: dict[str, list[Tensor]] = {}
    for item in build_part(cfgs[0].task, name=cfgs[0].task.name).load(options.prompts):
        prompt = list(wide.encode_chat(item.messages))
        text = decode_autoregressive(
            wide, prompt, temperature=0.0, max_new_tokens=options.tokens, generator=None
        ).tokens
        for name, target in (("float32", wide), ("bfloat16", narrow)):
            for kind, width in (("one by one", 1), ("blocks", options.block)):
                logits = logits_of(target, prompt, text, width).cpu()
                passes.setdefault(f"{name} {kind}", []).append(logits)
    best = torch.cat(passes["float32 one by one"]).topk(2, -1).values
    margins = best[:, 0] - best[:, 1]
    low, middle = margins.quantile(torch.tensor([0.01, 0.5])).tolist()
    print(f"{wide.name}, {wide.device}, {options.prompts} prompts, blocks of {options.block}")
    print(f"margin of the float32 argmax over the next token: 1 % {low:.3f}, median {middle:.3f}")
    for name, other in (
        ("float32 blocks", "float32 one by one"),
        ("bfloat16 blocks", "bfloat16 one by one"),
        ("bfloat16 one by one", "float32 one by one"),
        ("bfloat16 blocks", "float32 one by one"),
    ):
        print(told(f"{name} / {other.split(' ')[0]} one", passes[name], passes[other], margins))


if __name__ == "__main__":
    main()
