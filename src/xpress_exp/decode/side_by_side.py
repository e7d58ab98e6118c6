"""One measured round: prompts decoded autoregressively and by every arm, in rotating order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xpress_exp.decode.batch import Drafting, Request, decode_batch
from xpress_exp.decode.loop import decode_autoregressive, decode_speculative
from xpress_exp.decode.noise import Draws, PositionNoise
from xpress_exp.decode.sampling import random_stream
from xpress_exp.law import ALL_TOKENS, Truncation
from xpress_exp.solver.contract import Solver
from xpress_exp.types import SampleTrace
from xpress_exp.verifier.contract import Verifier

if TYPE_CHECKING:
    from xpress_exp.builders import DraftModel
    from xpress_exp.target import TargetModel

BASELINE = "ar"
COUPLED = "coupled"


@dataclass(frozen=True)
class Arm:
    """A way of drafting under measurement.

    name: unique within a round; it and `seed` key the random stream. draft_temperature None means
    the target's temperature.
    """

    name: str
    seed: int
    model: DraftModel
    solver: Solver
    verifier: Verifier
    draft_temperature: float | None


@dataclass(frozen=True)
class MeasuredPrompt:
    """A prompt ready to decode: token ids with the chat template applied."""

    id: str
    domain: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Measurement:
    """Baseline and arms of one round. arms: name -> (place in the decoding order, trace)."""

    baseline: SampleTrace
    arms: dict[str, tuple[int, SampleTrace]]


def rotated(count: int, index: int) -> list[int]:
    """0..count-1 starting at index mod count, so that no arm always runs on a warm cache."""
    return [(index + place) % count for place in range(count)]


def _is_coupled(arms: Sequence[Arm]) -> bool:
    """Whether the arms share position-keyed noise with the baseline. Raises ValueError for a mix:
    one baseline cannot serve both."""
    kinds = {arm.verifier.coupled for arm in arms}
    if len(kinds) > 1:
        raise ValueError("arms with verifier=gumbel_coupled need rounds of their own")
    return True in kinds


def measure(
    target: TargetModel,
    arms: Sequence[Arm],
    prompts: Sequence[MeasuredPrompt],
    *,
    temperature: float,
    max_new_tokens: int,
    index: int,
    truncation: Truncation = ALL_TOKENS,
) -> list[Measurement]:
    """Decode `prompts` once by the baseline and once by each arm, several prompts as one batch;
    round `index` starts at participant index mod (1 + number of arms), the baseline being
    participant 0. One measurement per prompt.

    Every participant has a stream of its own per prompt; coupled arms and their baseline share one
    noise, whatever the arm's name and seed. Raises ValueError for a mix of both kinds.
    """
    device = target.device
    coupled = _is_coupled(arms)

    def draws(prompt: MeasuredPrompt, first: object, last: Sequence[object]) -> Draws:
        if coupled:
            return PositionNoise(device, target.vocab_size, COUPLED, prompt.id, temperature)
        return random_stream(device, first, prompt.id, temperature, *last)

    def requests(first: object, *last: object) -> list[Request]:
        return [
            Request(prompt.ids, draws(prompt, first, last), prompt.id, prompt.domain)
            for prompt in prompts
        ]

    limits = _Limits(temperature, max_new_tokens, truncation)
    baseline: list[SampleTrace] = []
    decoded: dict[str, tuple[int, list[SampleTrace]]] = {}
    for place, which in enumerate(rotated(1 + len(arms), index)):
        if which == 0:
            # Seed-free: arms of several seeds share one baseline.
            baseline = _decode(target, None, requests(BASELINE), limits)
            continue
        arm = arms[which - 1]
        traces = _decode(target, arm, requests(arm.seed, arm.name), limits)
        decoded[arm.name] = (place, traces)
    return [
        Measurement(alone, {name: (place, own[k]) for name, (place, own) in decoded.items()})
        for k, alone in enumerate(baseline)
    ]


@dataclass(frozen=True)
class _Limits:
    temperature: float
    max_new_tokens: int
    truncation: Truncation


def _decode(
    target: TargetModel, arm: Arm | None, requests: Sequence[Request], limits: _Limits
) -> list[SampleTrace]:
    """Traces of one participant: of the one-prompt loops for one prompt, else of one batch."""
    settings: dict[str, Any] = vars(limits)
    drafting = None if arm is None else _drafting(arm, limits.temperature)
    if len(requests) > 1:
        return decode_batch(target, requests, drafting=drafting, batch=len(requests), **settings)
    [request] = requests
    labels: dict[str, Any] = {"prompt_id": request.prompt_id, "domain": request.domain}
    settings |= {"generator": request.generator, **labels}
    if drafting is None:
        return [decode_autoregressive(target, request.prompt_ids, **settings)]
    return [
        decode_speculative(
            target,
            drafting.model,
            drafting.solver,
            drafting.verifier,
            request.prompt_ids,
            draft_temperature=drafting.draft_temperature,
            **settings,
        )
    ]


def _drafting(arm: Arm, temperature: float) -> Drafting:
    draft = temperature if arm.draft_temperature is None else arm.draft_temperature
    return Drafting(arm.model, arm.solver, arm.verifier, draft)
