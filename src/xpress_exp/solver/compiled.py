"""A solver whose passes are one captured graph: no launch, no host and no wait between them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from xpress_exp.head import CorrectionHead
from xpress_exp.solver.contract import BlockState, Solver, block_noise
from xpress_exp.solver.jacobi import JacobiSolver
from xpress_exp.types import Proposal, Randomness


class _Given:
    """Noise that was drawn outside of the graph."""

    def __init__(self, noise: Tensor | None) -> None:
        self.noise = noise

    def gumbel(self, logits: Tensor, vocab_ids: Tensor | None) -> Any:  # noqa: ARG002
        return self.noise


class CompiledSolver:
    """`inner` through torch.compile, once per head and kind of block; the same drafts.

    A Jacobi solver runs all of its passes, since ending at the fixed point would make the host
    wait for every pass. mode: see torch.compile; 'reduce-overhead' captures CUDA graphs. Raises
    ValueError for solver.noise=fresh, whose number of draws a graph cannot hold.
    """

    def __init__(self, inner: Solver, mode: str = "reduce-overhead", **options: Any) -> None:
        if isinstance(inner, JacobiSolver):
            if inner.noise == "fresh":
                raise ValueError("solver.noise=fresh cannot be compiled; use shared or last")
            inner = JacobiSolver(inner.num_iterations, inner.noise, inner.seed, stop="never")
        self.inner = inner
        self._compile = {"fullgraph": True, "mode": mode, **options}
        self._runs: dict[tuple[Any, ...], Any] = {}

    @torch.no_grad()
    def propose(
        self,
        block: BlockState,
        head: CorrectionHead,
        temperature: float,
        generator: Randomness,
    ) -> Proposal:
        """See `Solver`. The head must be fast (`CorrectionHead.make_fast`), so that no table is
        rebuilt within the graph."""
        key = (id(head), temperature, block.truncation)
        if key not in self._runs:
            self._runs[key] = torch.compile(self._graph(block, head, temperature), **self._compile)
        noise = block_noise(block, temperature, generator)
        tokens, logits = self._runs[key](
            block.base_logits, block.hidden, block.anchor, block.anchor_previous, noise
        )
        # Copies: the graph writes its next results into the same memory.
        law = None if logits is None else logits.clone()
        passes = block.slots.num_draft_tokens
        if isinstance(self.inner, JacobiSolver):
            passes = self.inner.num_iterations
        return Proposal(tokens.clone(), law, block.vocab_ids, passes)

    def _graph(self, like: BlockState, head: CorrectionHead, temperature: float) -> Any:
        inner = self.inner
        slots, vocab_ids, truncation = like.slots, like.vocab_ids, like.truncation

        def run(
            base: Tensor, hidden: Tensor, anchor: Tensor, previous: Tensor, noise: Tensor | None
        ) -> tuple[Tensor, Tensor | None]:
            block = BlockState(base, hidden, anchor, previous, slots, vocab_ids, truncation)
            done = inner.propose(block, head, temperature, _Given(noise))  # type: ignore[arg-type]
            return done.tokens, done.logits

        return run
