"""Prefill, propose, verify, commit: plain and speculative decoding of one prompt.

Both decoders share prefill, sampling and stop rules, so that their times and tokens compare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from xpress_exp.decode.clock import Clock
from xpress_exp.decode.noise import Draws, at_position
from xpress_exp.decode.output import Output
from xpress_exp.decode.sampling import sample_token
from xpress_exp.law import ALL_TOKENS, Truncation
from xpress_exp.solver.contract import BlockState, Solver
from xpress_exp.types import Proposal, Randomness, Round, SampleTrace, Verification
from xpress_exp.verifier.contract import Verifier
from xpress_exp.verifier.greedy import GreedyVerifier

if TYPE_CHECKING:
    from xpress_exp.builders import DraftModel
    from xpress_exp.target import TargetModel


@dataclass(frozen=True)
class Prefilled:
    """State after the prompt: target cache of the prompt, its features [1, c, F], the output that
    holds the first token, the clock and its mark before the prompt."""

    cache: Any
    features: Tensor
    output: Output
    clock: Clock
    started: Any
    device: torch.device


def _prefill(
    target: TargetModel,
    prompt_ids: Sequence[int],
    temperature: float,
    max_new_tokens: int,
    generator: Draws,
    truncation: Truncation,
    watch: Callable[[Sequence[int]], bool] | None = None,
) -> Prefilled:
    """Run the prompt and sample the first token from its last logits."""
    if not prompt_ids:
        raise ValueError("the prompt has no token; give at least one")
    if max_new_tokens < 1:
        raise ValueError(f"decode.max_new_tokens={max_new_tokens} generates nothing; use >= 1")
    device = target.device
    clock = Clock(device)
    started = clock.mark()
    cache = target.new_decode_cache()
    ids = torch.tensor([list(prompt_ids)], device=device)
    done = target.forward(ids, cache=cache, num_logits=1)
    assert done.logits is not None
    output = Output(max_new_tokens, frozenset(target.stop_token_ids), watch=watch)
    noise = at_position(generator, cache.length)
    output.commit(sample_token(done.logits[:, -1], temperature, noise, truncation).tolist())
    return Prefilled(cache, done.features, output, clock, started, device)


def _trace(
    prompt_ids: Sequence[int],
    output: Output,
    times: tuple[float, float],
    rounds: Sequence[Round] = (),
    step_ms: Sequence[float] = (),
    prompt_id: str = "",
    domain: str = "",
) -> SampleTrace:
    """times: prefill and decode milliseconds."""
    return SampleTrace(
        prompt_id=prompt_id,
        domain=domain,
        tokens=tuple(output.tokens),
        rounds=tuple(rounds),
        prompt_tokens=len(prompt_ids),
        prefill_ms=times[0],
        decode_ms=times[1],
        step_ms=tuple(step_ms),
        finish_reason="stop" if output.stopped else "length",
    )


@torch.inference_mode()
def decode_autoregressive(
    target: TargetModel,
    prompt_ids: Sequence[int],
    *,
    temperature: float,
    max_new_tokens: int,
    generator: Draws,
    truncation: Truncation = ALL_TOKENS,
    prompt_id: str = "",
    domain: str = "",
) -> SampleTrace:
    """Decode one prompt one token at a time: the baseline of every speed-up.

    prompt_ids: at least one token id. max_new_tokens counts the prefill's token. generator: a
    stream, or the noise of `decode_speculative` under a coupled verifier. The trace has one
    `step_ms` entry per token after the first. Raises ValueError on an empty prompt or limit.
    """
    state = _prefill(target, prompt_ids, temperature, max_new_tokens, generator, truncation)
    output, clock = state.output, state.clock
    marks = [clock.mark()]
    while not output.finished:
        last = torch.tensor([[output.tokens[-1]]], device=state.device)
        logits = target.forward(last, cache=state.cache, num_logits=1).logits
        assert logits is not None
        noise = at_position(generator, state.cache.length)
        output.commit(sample_token(logits[:, -1], temperature, noise, truncation).tolist())
        marks.append(clock.mark())
    steps = [clock.between(first, second) for first, second in pairwise(marks)]
    times = (clock.between(state.started, marks[0]), clock.between(marks[0], marks[-1]))
    return _trace(prompt_ids, output, times, (), steps, prompt_id, domain)


def on_host(verdict: Verification, proposal: Proposal) -> list[tuple[int, int, list[int]]]:
    """(number accepted, next token, drafts) of every row: the round's one wait for the device."""
    parts = (verdict.num_accepted[:, None], verdict.next_token[:, None], proposal.tokens)
    return [(row[0], row[1], row[2:]) for row in torch.cat(parts, 1).tolist()]


@dataclass
class SpeculativeDecoder:
    """Draft, verify and commit for one prompt; holds what stays fixed between rounds."""

    target: TargetModel
    model: DraftModel
    solver: Solver
    verifier: Verifier
    temperature: float
    draft_temperature: float
    generator: Draws
    truncation: Truncation

    def propose(
        self, hidden: Tensor, base: Tensor, anchor: Tensor, previous: Tensor, noise: Randomness
    ) -> Proposal:
        """Drafts for one block. hidden [1, P, H], base [1, N, V'], anchor and previous [1]."""
        block = BlockState(
            base_logits=base,
            hidden=hidden,
            anchor=anchor,
            anchor_previous=previous,
            slots=self.model.drafter.slots,
            vocab_ids=self.model.vocab_ids,
            truncation=self.truncation,
        )
        return self.solver.propose(block, self.model.head, self.draft_temperature, noise)

    def round(
        self, state: Prefilled, draft_cache: Any, pending: Tensor | None, last_two: list[int]
    ) -> tuple[Round, Tensor]:
        """One propose-verify-commit round.

        pending [1, c, F]: features of the tokens that the last round verified, not yet in the
        drafter's cache (None in the first round). last_two: the token before the anchor and the
        anchor. Returns the round and the features it leaves pending.
        """
        device, output, clock = state.device, state.output, state.clock
        previous, anchor = torch.tensor([last_two], device=device).unbind(1)
        marks = [clock.mark()]
        if pending is not None:
            self.model.drafter.extend(draft_cache, pending)
        hidden = self.model.drafter.draft(draft_cache, anchor)
        base = self.model.base_logits(hidden[:, self.model.drafter.slots.draft_slots])
        marks.append(clock.mark())
        start = state.cache.length  # the anchor's position: it is not cached yet
        noise = at_position(self.generator, start + 1)
        proposal = self.propose(hidden, base, anchor, previous, noise)
        marks.append(clock.mark())
        block = torch.cat([anchor[:, None], proposal.tokens], 1)
        verified = self.target.forward(block, cache=state.cache)
        assert verified.logits is not None
        verdict = self.verifier.verify(
            proposal, verified.logits, self.temperature, noise, self.truncation
        )
        accepted, next_token, drafts = on_host(verdict, proposal)[0]
        committed = output.commit([*drafts[:accepted], next_token])
        # The anchor and the accepted drafts stay; the next token is the new anchor, not cached.
        state.cache.crop(start + accepted + 1)
        marks.append(clock.mark())
        draft_ms, head_ms, verify_ms = (clock.between(*pair) for pair in pairwise(marks))
        done = Round(
            drafted=proposal.tokens.shape[1],
            accepted=accepted,
            committed=committed,
            num_passes=proposal.num_passes,
            draft_ms=draft_ms,
            head_ms=head_ms,
            verify_ms=verify_ms,
        )
        return done, verified.features[:, : accepted + 1]


@torch.inference_mode()
def decode_speculative(
    target: TargetModel,
    model: DraftModel,
    solver: Solver,
    verifier: Verifier,
    prompt_ids: Sequence[int],
    *,
    temperature: float,
    draft_temperature: float,
    max_new_tokens: int,
    generator: Draws,
    truncation: Truncation = ALL_TOKENS,
    prompt_id: str = "",
    domain: str = "",
    watch: Callable[[Sequence[int]], bool] | None = None,
) -> SampleTrace:
    """Decode one prompt with drafts (batch 1).

    At temperature 0 the greedy verifier is used whatever `verifier` is. A full block is drafted
    even when fewer tokens are wanted; `Round.accepted` counts before that cut, `committed` after
    it. generator: a stream, or `PositionNoise` for a coupled verifier. truncation holds for the
    target's law and the drafts'. `watch` sees all tokens after each one and ends decoding by
    returning True. Raises ValueError on an empty prompt or limit.
    """
    state = _prefill(target, prompt_ids, temperature, max_new_tokens, generator, truncation, watch)
    rule = GreedyVerifier() if temperature == 0 else verifier
    decoder = SpeculativeDecoder(
        target, model, solver, rule, temperature, draft_temperature, generator, truncation
    )
    draft_cache, pending, rounds = model.drafter.new_cache(), None, []
    model.drafter.extend(draft_cache, state.features)
    begun = state.clock.mark()
    while not state.output.finished:
        last_two = [*prompt_ids[-1:], *state.output.tokens][-2:]
        done, pending = decoder.round(state, draft_cache, pending, last_two)
        rounds.append(done)
    clock = state.clock
    times = (clock.between(state.started, begun), clock.between(begun, clock.mark()))
    return _trace(prompt_ids, state.output, times, rounds, (), prompt_id, domain)
