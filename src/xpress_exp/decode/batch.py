"""Several prompts at once, with or without drafts: every row accepts its own count.

Rows share each forward and nothing else: caches, noise, stop rules and traces are their own, and
tokens equal those of the one-prompt loops of `decode.loop`, the reference. A row that finishes
makes room for the next prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from xpress_exp.decode.clock import Clock
from xpress_exp.decode.loop import on_host
from xpress_exp.decode.noise import Draws, RowNoise, at_position
from xpress_exp.decode.output import Output
from xpress_exp.decode.sampling import sample_token
from xpress_exp.kv_cache import KVCache
from xpress_exp.law import ALL_TOKENS, Truncation
from xpress_exp.solver.contract import BlockState, Solver
from xpress_exp.types import Proposal, Round, SampleTrace, Verification
from xpress_exp.verifier.contract import Verifier
from xpress_exp.verifier.greedy import GreedyVerifier

if TYPE_CHECKING:
    from xpress_exp.builders import DraftModel
    from xpress_exp.target import TargetModel


@dataclass(frozen=True)
class Request:
    """One prompt with the source of its draws."""

    prompt_ids: tuple[int, ...]
    generator: Draws = None
    prompt_id: str = ""
    domain: str = ""


@dataclass(frozen=True)
class Drafting:
    """What proposes and verifies; its absence is plain decoding."""

    model: DraftModel
    solver: Solver
    verifier: Verifier
    draft_temperature: float


@dataclass
class _Row:
    """One prompt on its way. pending [c, F]: features of verified tokens that the drafter lacks."""

    index: int
    request: Request
    output: Output
    prefill_ms: float
    rounds: list[Round] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    pending: Tensor | None = None

    @property
    def last_two(self) -> list[int]:
        return [*self.request.prompt_ids[-1:], *self.output.tokens][-2:]


@torch.inference_mode()
def decode_batch(
    target: TargetModel,
    requests: Sequence[Request],
    *,
    drafting: Drafting | None,
    batch: int,
    temperature: float,
    max_new_tokens: int,
    truncation: Truncation = ALL_TOKENS,
) -> list[SampleTrace]:
    """Decode every request, at most `batch` at a time; traces in the order of the requests.

    A round's time is charged to its rows in equal shares, so that the times of all traces add up.
    Raises ValueError for an empty prompt, a limit below 1, batch below 1, or a target whose
    caches cannot hold ragged rows (see `TargetModel.make_fast`).
    """
    if batch < 1 or max_new_tokens < 1 or any(not request.prompt_ids for request in requests):
        raise ValueError(
            f"decode.batch={batch}, decode.max_new_tokens={max_new_tokens}: both must be at least "
            "1, and every prompt needs a token"
        )
    longest = max((len(request.prompt_ids) for request in requests), default=0)
    decoder = _BatchDecoder(target, drafting, temperature, max_new_tokens, truncation)
    decoder.open(min(batch, len(requests)), longest)
    traces: dict[int, SampleTrace] = {}
    waiting = list(enumerate(requests))[::-1]
    while waiting or decoder.rows:
        while waiting and decoder.has_room:
            decoder.admit(*waiting.pop())
            traces |= decoder.harvest()
        if decoder.rows:
            decoder.round()
            traces |= decoder.harvest()
    return [traces[index] for index in range(len(requests))]


class _BatchDecoder:
    def __init__(
        self,
        target: TargetModel,
        drafting: Drafting | None,
        temperature: float,
        max_new_tokens: int,
        truncation: Truncation,
    ) -> None:
        self.target = target
        if drafting is not None and temperature == 0:
            drafting = replace(drafting, verifier=GreedyVerifier())
        self.drafting = drafting
        self.temperature = temperature
        self.limit = max_new_tokens
        self.truncation = truncation
        self.clock = Clock(target.device)
        self.rows: list[_Row] = []

    def open(self, size: int, longest: int) -> None:
        """Caches of `size` rows, large enough for any prompt up to `longest` tokens."""
        cache = self.target.new_decode_cache(size)
        if not isinstance(cache, KVCache):
            raise ValueError(
                f"decode.batch={size} needs decode.kernels=fast and a target that it fits, which "
                f"{self.target.name} is not; use decode.batch=1"
            )
        self.cache, self.size = cache, size
        block = 1
        if self.drafting is not None:
            self.draft_cache = self.drafting.model.drafter.new_cache(size)
            block = self.drafting.model.slots.block_size + 1
            self.draft_cache.ensure(longest + self.limit + block)
        self.cache.ensure(longest + self.limit + block)

    @property
    def has_room(self) -> bool:
        return len(self.rows) < self.size

    def admit(self, index: int, request: Request) -> None:
        """Prefill one prompt into a free row and sample its first token."""
        place = len(self.rows)
        begun = self.clock.mark()
        self.cache.lengths[place] = 0
        view = self.cache.row(place)
        ids = torch.tensor([list(request.prompt_ids)], device=self.target.device)
        done = self.target.forward(ids, cache=view, num_logits=1)
        assert done.logits is not None
        self.cache.lengths[place] = view.length
        if self.drafting is not None:
            self.draft_cache.lengths[place] = 0
            context = self.draft_cache.row(place)
            self.drafting.model.drafter.extend(context, done.features)
            self.draft_cache.lengths[place] = context.length
        output = Output(self.limit, frozenset(self.target.stop_token_ids))
        noise = at_position(request.generator, view.length)
        first = sample_token(done.logits[:, -1], self.temperature, noise, self.truncation)
        output.commit(first.tolist())
        spent = self.clock.between(begun, self.clock.mark())
        self.rows.append(_Row(index, request, output, spent))

    def harvest(self) -> dict[int, SampleTrace]:
        """Traces of the rows that have finished; their places move to the end."""
        done = {row.index: _trace(row) for row in self.rows if row.output.finished}
        if done:
            kept = [place for place, row in enumerate(self.rows) if not row.output.finished]
            self._select([*kept, *(place for place in range(self.size) if place not in kept)])
            self.rows = [self.rows[place] for place in kept]
        return done

    def _select(self, places: Sequence[int]) -> None:
        self.cache.select(places)
        if self.drafting is not None:
            self.draft_cache.select(places)
        self.size = len(places)

    def round(self) -> None:
        """One token, or one block, for every row."""
        if self.size > len(self.rows):
            self._select(range(len(self.rows)))
        marks = [self.clock.mark()]
        proposal = self._draft(marks)
        last = [row.output.tokens[-1:] for row in self.rows]
        anchors = torch.tensor(last, device=self.target.device)
        starts = list(self.cache.lengths)
        verified = self.target.forward(torch.cat([anchors, proposal.tokens], 1), cache=self.cache)
        assert verified.logits is not None
        verdict = self._verify(proposal, verified.logits, starts)
        outcomes = on_host(verdict, proposal)
        self.cache.crop([start + row[0] + 1 for start, row in zip(starts, outcomes, strict=True)])
        committed = [
            row.output.commit([*drafts[:accepted], following])
            for row, (accepted, following, drafts) in zip(self.rows, outcomes, strict=True)
        ]
        marks.append(self.clock.mark())
        spent = [self.clock.between(*pair) / len(self.rows) for pair in pairwise(marks)]
        for place, row in enumerate(self.rows):
            accepted = outcomes[place][0]
            row.pending = verified.features[place, : accepted + 1]
            if self.drafting is None:
                row.steps.append(sum(spent))
                continue
            row.rounds.append(
                Round(
                    drafted=proposal.tokens.shape[1],
                    accepted=accepted,
                    committed=committed[place],
                    num_passes=proposal.num_passes,
                    draft_ms=spent[0],
                    head_ms=spent[1],
                    verify_ms=spent[2],
                )
            )

    def _draft(self, marks: list[Any]) -> Proposal:
        """Drafts of all rows; none of them without a drafter."""
        device = self.target.device
        if self.drafting is None:
            return Proposal(torch.zeros(len(self.rows), 0, dtype=torch.int64, device=device), None)
        model = self.drafting.model
        pending = [row.pending for row in self.rows if row.pending is not None]
        if pending:
            nothing = pending[0][:0]
            each = [nothing if row.pending is None else row.pending for row in self.rows]
            padded = torch.nn.utils.rnn.pad_sequence(each, batch_first=True)
            model.drafter.extend(self.draft_cache, padded, [len(part) for part in each])
        last_two = torch.tensor([row.last_two for row in self.rows], device=device)
        previous, anchor = last_two.unbind(1)
        hidden = model.drafter.draft(self.draft_cache, anchor)
        base = model.base_logits(hidden[:, model.slots.draft_slots])
        marks.append(self.clock.mark())
        block = BlockState(
            base, hidden, anchor, previous, model.slots, model.vocab_ids, self.truncation
        )
        noise = RowNoise([row.request.generator for row in self.rows], self._firsts())
        proposal = self.drafting.solver.propose(
            block, model.head, self.drafting.draft_temperature, noise
        )
        marks.append(self.clock.mark())
        return proposal

    def _firsts(self) -> list[int]:
        """Position of each row's next token behind its anchor, which is not cached yet."""
        return [length + 1 for length in self.cache.lengths[: len(self.rows)]]

    def _verify(self, proposal: Proposal, logits: Tensor, starts: Sequence[int]) -> Verification:
        if self.drafting is not None and self.temperature == 0:
            return self.drafting.verifier.verify(proposal, logits, 0.0, None, self.truncation)
        verdicts = [
            self._verify_row(proposal, logits, place, start + 1)
            for place, start in enumerate(starts)
        ]
        return Verification(
            torch.cat([verdict.num_accepted for verdict in verdicts]),
            torch.cat([verdict.next_token for verdict in verdicts]),
        )

    def _verify_row(
        self, proposal: Proposal, logits: Tensor, place: int, position: int
    ) -> Verification:
        """One row with draws of its own, as if it were alone."""
        noise = at_position(self.rows[place].request.generator, position)
        part = slice(place, place + 1)
        if self.drafting is None:
            token = sample_token(logits[part, -1], self.temperature, noise, self.truncation)
            return Verification(torch.zeros_like(token), token)
        own = replace(
            proposal,
            tokens=proposal.tokens[part],
            logits=None if proposal.logits is None else proposal.logits[part],
        )
        return self.drafting.verifier.verify(
            own, logits[part], self.temperature, noise, self.truncation
        )


def _trace(row: _Row) -> SampleTrace:
    parts = [sum((r.draft_ms, r.head_ms, r.verify_ms)) for r in row.rounds]
    return SampleTrace(
        prompt_id=row.request.prompt_id,
        domain=row.request.domain,
        tokens=tuple(row.output.tokens),
        rounds=tuple(row.rounds),
        prompt_tokens=len(row.request.prompt_ids),
        prefill_ms=row.prefill_ms,
        decode_ms=sum(parts) + sum(row.steps),
        step_ms=tuple(row.steps),
        finish_reason="stop" if row.output.stopped else "length",
    )
