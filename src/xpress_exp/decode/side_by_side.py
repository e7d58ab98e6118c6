"""One measured round: a prompt decoded autoregressively and by every arm, in rotating order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    prompt: MeasuredPrompt,
    *,
    temperature: float,
    max_new_tokens: int,
    index: int,
    truncation: Truncation = ALL_TOKENS,
) -> Measurement:
    """Decode `prompt` once by the baseline and once by each arm; round `index` starts at
    participant index mod (1 + number of arms), the baseline being participant 0.

    Every participant has a stream of its own; coupled arms and their baseline share one noise,
    whatever the arm's name and seed. Raises ValueError for a mix of both kinds.
    """
    device = target.device
    coupled = _is_coupled(arms)

    def draws(*key: object) -> Draws:
        if coupled:
            return PositionNoise(device, target.vocab_size, COUPLED, prompt.id, temperature)
        return random_stream(device, *key)

    baseline: list[SampleTrace] = []
    decoded: dict[str, tuple[int, SampleTrace]] = {}
    for place, which in enumerate(rotated(1 + len(arms), index)):
        if which == 0:
            baseline.append(
                decode_autoregressive(
                    target,
                    prompt.ids,
                    temperature=temperature,
                    max_new_tokens=max_new_tokens,
                    # Seed-free: arms of several seeds share one baseline.
                    generator=draws(BASELINE, prompt.id, temperature),
                    truncation=truncation,
                    prompt_id=prompt.id,
                    domain=prompt.domain,
                )
            )
            continue
        arm = arms[which - 1]
        draft = temperature if arm.draft_temperature is None else arm.draft_temperature
        trace = decode_speculative(
            target,
            arm.model,
            arm.solver,
            arm.verifier,
            prompt.ids,
            temperature=temperature,
            draft_temperature=draft,
            max_new_tokens=max_new_tokens,
            generator=draws(arm.seed, prompt.id, temperature, arm.name),
            truncation=truncation,
            prompt_id=prompt.id,
            domain=prompt.domain,
        )
        decoded[arm.name] = (place, trace)
    return Measurement(baseline[0], decoded)
