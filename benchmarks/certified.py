"""How often a proof shows, without the full readout, which token a corrected position says.

    python benchmarks/certified.py RUN [--prompts 6] [--tokens 32]

RUN is a run directory with a trained head. Corrected logits are base + W z. For tokens v outside
the C best of the base, base_v + (exact part of w_v . z in the R leading singular directions of W)
+ |rest of w_v| |rest of z| bounds what v can reach. Where no bound exceeds the best candidate's own
value, the candidates alone decide the argmax. R = 0 is the plain Cauchy-Schwarz bound, R = r exact.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

import xpress_exp
from xpress_exp.head import CorrectionHead
from xpress_exp.solver import BlockState, Solver
from xpress_exp.solver.contract import previous_tokens
from xpress_exp.task import BuiltinHeldout
from xpress_exp.types import Proposal, Randomness

CANDIDATES = (16, 64, 256, 1024)
DIRECTIONS = (0, 8, 16, 32, 48)


class Recorder:
    """Keeps base logits and codes of every drafted position, read at the final tokens."""

    def __init__(self, inner: Solver) -> None:
        self.inner = inner
        self.base: list[Tensor] = []
        self.codes: list[Tensor] = []

    def propose(
        self, block: BlockState, head: CorrectionHead, temperature: float, generator: Randomness
    ) -> Proposal:
        found = self.inner.propose(block, head, temperature, generator)
        read = previous_tokens(block, head, found.tokens)
        codes = head.code_from(head.prepare(block.hidden), read)[:, block.slots.draft_slots]
        self.base.append(block.base_logits[0])
        self.codes.append(codes[0])
        return found


def rates(base: Tensor, codes: Tensor, readout: Tensor) -> dict[tuple[int, int], float]:
    """Share of positions that are decided, by (candidates, directions)."""
    exact = codes @ readout.T
    _, _, directions = torch.linalg.svd(readout, full_matrices=False)
    found = {}
    for count in DIRECTIONS:
        if count > readout.shape[1]:
            continue
        turn = directions[:count]
        rest_of_rows = readout - (readout @ turn.T) @ turn
        rest_of_codes = codes - (codes @ turn.T) @ turn
        leading = (codes @ turn.T) @ (readout @ turn.T).T
        slack = rest_of_codes.norm(dim=-1, keepdim=True) * rest_of_rows.norm(dim=-1)
        bound = base + leading + slack
        for candidates in CANDIDATES:
            best = base.topk(candidates, -1).indices
            reached = (base + exact).gather(-1, best).amax(-1)
            outside = bound.scatter(-1, best, -torch.inf).amax(-1)
            found[candidates, count] = float((outside < reached).float().mean())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=32)
    options = parser.parse_args()
    drafts = xpress_exp.load(options.run)
    drafts.solver = recorder = Recorder(drafts.solver)
    for asked in BuiltinHeldout().load(options.prompts):
        ids = torch.tensor([drafts.target.encode_chat(list(asked.messages))])
        drafts.generate(ids, max_new_tokens=options.tokens, do_sample=False)
    base, codes = torch.cat(recorder.base), torch.cat(recorder.codes)
    readout = drafts.model.head.readout
    found = rates(base, codes, readout)
    inside = {
        count: float(
            (base.topk(count, -1).indices == (base + codes @ readout.T).argmax(-1)[:, None])
            .any(-1)
            .float()
            .mean()
        )
        for count in CANDIDATES
    }
    print(f"{options.run}: {len(base)} positions, rank {readout.shape[1]}")
    print("candidates" + "".join(f"{f'R={count}':>9}" for count in DIRECTIONS) + "   winner inside")
    for candidates in CANDIDATES:
        row = [found.get((candidates, count)) for count in DIRECTIONS]
        cells = "".join(f"{'-' if cell is None else f'{cell:.1%}':>9}" for cell in row)
        print(f"{candidates:>10}{cells}{inside[candidates]:>15.1%}")


if __name__ == "__main__":
    main()
