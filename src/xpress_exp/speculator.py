"""A trained drafter and its target as one object with `generate`, as in Transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xpress_exp.builders import DraftModel, build_part, load_content
from xpress_exp.decode import decode_speculative
from xpress_exp.export import Content, read_folder
from xpress_exp.few_rows import LayoutChoice
from xpress_exp.grid import compose_points
from xpress_exp.law import Truncation
from xpress_exp.metric import acceptance
from xpress_exp.solver import JacobiSolver, ParallelSolver, Solver
from xpress_exp.target import TargetModel
from xpress_exp.types import SampleTrace
from xpress_exp.verifier import RejectionVerifier

# K of a folder that names none.
NUM_PASSES = 6
# Settings of a generation config that are followed; eos_token_id ends the output.
FOLLOWED = (
    "max_new_tokens",
    "max_length",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "eos_token_id",
    "return_dict_in_generate",
)
# They change nothing here: one sequence, caches of our own.
WITHOUT_EFFECT = (
    "pad_token_id",
    "bos_token_id",
    "use_cache",
    "cache_implementation",
    "transformers_version",
    "_from_model_config",
)
# Values that switch a setting off, beside 0, False and None.
NEUTRAL: dict[str, int] = dict.fromkeys(
    (
        "num_beams",
        "num_beam_groups",
        "num_return_sequences",
        "typical_p",
        "repetition_penalty",
        "length_penalty",
        "encoder_repetition_penalty",
    ),
    1,
)
DEFAULT_NEW_TOKENS = 20


@dataclass(frozen=True)
class GenerateOutput:
    """sequences int64 [1, T + new], the prompt included. tau: committed tokens per verification
    (nan without a round); tau_uncut, accepted_per_drafted and accept_by_position as in the report.
    trace: every round with its counts and times in milliseconds."""

    sequences: Tensor
    tau: float
    tau_uncut: float
    accepted_per_drafted: float
    accept_by_position: tuple[float, ...]
    num_rounds: int
    trace: SampleTrace

    def __getitem__(self, key: str) -> Any:
        """Fields by name, as Transformers' outputs have them."""
        return getattr(self, key)


class Speculator:
    """Decodes with drafts; the output follows the target's law, as without them."""

    def __init__(self, target: TargetModel, model: DraftModel, solver: Solver) -> None:
        self.target = target
        self.model = model
        self.solver = solver

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor,
        generation_config: Any = None,
        stopping_criteria: Sequence[Callable[..., Any]] | None = None,
        streamer: Any = None,
        attention_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        **settings: Any,
    ) -> Tensor | GenerateOutput:
        """Continue input_ids int64 [1, T]; returns int64 [1, T + new], or a `GenerateOutput` with
        return_dict_in_generate=True.

        settings override generation_config, which overrides the target's own: max_new_tokens or
        max_length, do_sample, temperature, top_k, top_p, eos_token_id; without a top_k none is
        applied (Transformers would assume 50). stopping_criteria are asked after every token,
        the streamer gets the prompt and then token by token. generator: source of all draws
        (default: torch's global one). attention_mask: all ones. Raises ValueError naming anything
        else.
        """
        prompt = _single_prompt(input_ids, attention_mask)
        options = _options(self.target, generation_config, settings)
        limit = _max_new_tokens(options, len(prompt))
        temperature = float(options.get("temperature", 1.0)) if options.get("do_sample") else 0.0
        target = self.target
        if options.get("eos_token_id") is not None:
            stop = options["eos_token_id"]
            target = target.with_stop_tokens([stop] if isinstance(stop, int) else stop)
        if streamer is not None:
            streamer.put(input_ids.cpu())
        trace = decode_speculative(
            target,
            self.model,
            self.solver,
            RejectionVerifier(),
            prompt,
            temperature=temperature,
            draft_temperature=temperature,
            truncation=_truncation(options),
            max_new_tokens=limit,
            generator=generator,
            watch=_watch(input_ids, list(stopping_criteria or ()), streamer),
        )
        if streamer is not None:
            streamer.end()
        new = torch.tensor([trace.tokens], dtype=input_ids.dtype, device=input_ids.device)
        sequences = torch.cat([input_ids, new], 1)
        return _output(sequences, trace) if options.get("return_dict_in_generate") else sequences


def load(
    path: str | Path, target: TargetModel | Any = "smollm2", solver: Solver | None = None
) -> Speculator:
    """A trained drafter with its head from a run directory or a checkpoint folder of any format.

    target: the model it was trained for, as a `TargetModel` with the folder's feature layers, a
    Transformers model, or the name of an option of the target group. solver: how drafts are
    resolved; the folder's number of Jacobi passes by default. Raises ArtefactError for a damaged or
    contradictory folder and for another target, ValueError for an unusable one.
    """
    folder = Path(path)
    content = read_folder(folder)
    if not content.head:
        raise ValueError(f"{folder} does not tell its head; give drafter.init such a folder")
    wrapped, choice = _as_target(target, list(content.drafter["target_layer_ids"]))
    model = load_content(content, folder, wrapped)
    wrapped.make_fast(choice)
    model.make_fast(choice)
    return Speculator(wrapped, model, solver or _default_solver(content))


def _default_solver(content: Content) -> Solver:
    if content.head["name"] == "none":
        return ParallelSolver()
    return JacobiSolver(NUM_PASSES if content.num_passes is None else content.num_passes)


def _as_target(target: Any, layer_ids: list[int]) -> tuple[TargetModel, LayoutChoice]:
    """The target with the features that the drafter reads, and where its layouts are kept: a named
    target has a cache folder, for a model of the caller's they are measured again."""
    if isinstance(target, str):
        [cfg] = compose_points([f"target={target}"])
        made = build_part(cfg.target, layer_ids=layer_ids, cache_dir=cfg.paths.cache)
        return made, LayoutChoice(Path(cfg.paths.cache))
    if not isinstance(target, TargetModel):
        return TargetModel(target, None, type(target).__name__, layer_ids, {}), LayoutChoice()
    if list(target.layer_ids) != layer_ids:
        raise ValueError(
            f"target has layer_ids={list(target.layer_ids)}, but the drafter reads {layer_ids}; "
            f"build the target with layer_ids={layer_ids}"
        )
    return target, LayoutChoice()


def _single_prompt(input_ids: Tensor, attention_mask: Tensor | None) -> list[int]:
    if input_ids.ndim != 2 or len(input_ids) != 1:
        raise ValueError(f"input_ids has shape {list(input_ids.shape)}; give one prompt, [1, T]")
    if attention_mask is not None and not bool(attention_mask.all()):
        raise ValueError("attention_mask hides tokens; give the prompt without padding")
    return input_ids[0].tolist()


def _options(target: TargetModel, given: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings in force: the call's, else those of the given config, else the target's own."""
    configs = [target.generation_config, *([] if given is None else [given])]
    options: dict[str, Any] = {}
    for told in (*(config.to_diff_dict() for config in configs), settings):
        if told.get("max_length") is not None and told.get("max_new_tokens") is None:
            options.pop("max_new_tokens", None)
        options |= {key: value for key, value in told.items() if value is not None}
    if not options.get("do_sample"):
        # Transformers ignores them as well when it decodes greedily.
        options = {k: v for k, v in options.items() if k not in ("temperature", "top_k", "top_p")}
    for key, value in options.items():
        if key not in (*FOLLOWED, *WITHOUT_EFFECT) and value and NEUTRAL.get(key) != value:
            raise ValueError(f"{key}={value} is not supported by generate; leave it out")
    if options.get("do_sample") and float(options.get("temperature", 1.0)) <= 0:
        raise ValueError(f"temperature={options['temperature']} must be > 0; or do_sample=False")
    return options


def _truncation(options: dict[str, Any]) -> Truncation:
    """top_k=0 and top_p=1 keep all tokens, as in Transformers."""
    top_p = options.get("top_p")
    return Truncation(options.get("top_k") or None, None if top_p == 1 else top_p)


def _max_new_tokens(options: dict[str, Any], prompt_tokens: int) -> int:
    """max_new_tokens, else what max_length leaves; raises ValueError when that is nothing."""
    limit = options.get("max_new_tokens", DEFAULT_NEW_TOKENS)
    if "max_new_tokens" not in options and "max_length" in options:
        limit = options["max_length"] - prompt_tokens
    if limit < 1:
        raise ValueError(
            f"nothing to generate: the prompt has {prompt_tokens} tokens; give max_new_tokens >= 1"
        )
    return limit


def _watch(
    input_ids: Tensor, criteria: list[Callable[..., Any]], streamer: Any
) -> Callable[[Sequence[int]], bool] | None:
    """Called after every token: hands it to the streamer and asks the stopping criteria."""
    if not criteria and streamer is None:
        return None

    def watch(tokens: Sequence[int]) -> bool:
        if streamer is not None:
            streamer.put(torch.tensor([tokens[-1]]))
        if not criteria:
            return False
        new = torch.tensor([list(tokens)], dtype=input_ids.dtype, device=input_ids.device)
        so_far = torch.cat([input_ids, new], 1)
        return any(bool(torch.as_tensor(rule(so_far, None)).all()) for rule in criteria)

    return watch


def _output(sequences: Tensor, trace: SampleTrace) -> GenerateOutput:
    counts = acceptance([trace])
    return GenerateOutput(
        sequences=sequences,
        tau=counts.tau,
        tau_uncut=counts.tau_uncut,
        accepted_per_drafted=counts.accepted_per_drafted,
        accept_by_position=counts.by_position,
        num_rounds=counts.num_rounds,
        trace=trace,
    )
