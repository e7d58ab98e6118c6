"""eval: decode every variant of an experiment side by side with the autoregressive baseline."""

from __future__ import annotations

import logging
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from tqdm import tqdm

from xpress_exp.builders import DraftModel, build_part, build_target, load_model
from xpress_exp.decode import Arm, MeasuredPrompt, measure
from xpress_exp.few_rows import LayoutChoice
from xpress_exp.law import Truncation
from xpress_exp.metric import EvalRecord
from xpress_exp.run_dir import ArtefactError, RunDir, fingerprint, git_state
from xpress_exp.schema import COUPLED_VERIFIER, plain, run_path, unique_points
from xpress_exp.solver import CompiledSolver
from xpress_exp.stage.eval_store import EvalStore, Termination, missing_rounds
from xpress_exp.stage.variant import eval_dir, variant_facts
from xpress_exp.target import TargetModel
from xpress_exp.task import TaskPrompt, prompts_sha256

log = logging.getLogger(__name__)
PROGRESS_SECONDS = 5.0


@dataclass(frozen=True)
class Variant:
    """A point to decode and where its records go."""

    cfg: DictConfig
    store: EvalStore
    model_sha256: str

    @property
    def name(self) -> str:
        """Unique among all variants; keys the random stream."""
        folder = self.store.folder.path
        return f"{folder.parent.parent.name}/{folder.name}"


def evaluate(cfgs: Sequence[DictConfig]) -> list[Path]:
    """Decode all points that have no complete evaluation; returns their folders, complete ones too.

    Points that share target, task and limits are decoded in the same rounds (one by one when
    decode.side_by_side is false). Resumable round by round. Raises ArtefactError when a folder
    holds something else, and, after the others were measured, for runs that are not trained.
    """
    points = unique_points(cfgs)
    groups: dict[str, list[Variant]] = {}
    problems: list[str] = []
    for cfg in points:
        try:
            variant = _variant(cfg)
        except ArtefactError as error:
            problems.append(str(error))
            continue
        if variant.store.is_done(variant.model_sha256):
            log.info("eval: %s is complete", variant.name)
            continue
        groups.setdefault(_group_key(cfg, variant), []).append(variant)
    termination = Termination()
    with termination.installed():
        for variants in groups.values():
            _evaluate_group(variants, termination)
    if problems:
        raise ArtefactError("; ".join(problems))
    return [eval_dir(cfg) for cfg in points]


def _variant(cfg: DictConfig) -> Variant:
    run = RunDir(run_path(cfg))
    trained = run.done("train")
    if trained is None:
        raise ArtefactError(f"{run.path} has no finished training; run stages=[train] first")
    return Variant(cfg, EvalStore(eval_dir(cfg), cfg.task.name), trained["model_sha256"])


def _group_key(cfg: DictConfig, variant: Variant) -> str:
    """Variants with one key share a target, its prompts and the baseline."""
    shared = {
        "target": plain(cfg.target),
        "target_layer_ids": plain(cfg.drafter.target_layer_ids),
        "task": plain(cfg.task),
        "temperatures": plain(cfg.decode.temperatures),
        "max_new_tokens": cfg.decode.max_new_tokens,
        "num_prompts": cfg.decode.num_prompts,
        "truncation": [cfg.decode.top_k, cfg.decode.top_p],
        "kernels": cfg.decode.kernels,
        # These share their noise with the baseline, which others must not.
        "coupled": cfg.verifier.name == COUPLED_VERIFIER,
    }
    alone = "" if cfg.decode.side_by_side else variant.name
    return fingerprint([shared, alone])


def _evaluate_group(variants: Sequence[Variant], termination: Termination) -> None:
    """All rounds of one group: build the target once and every run's model once."""
    cfg = variants[0].cfg
    if cfg.trainer.num_threads:
        torch.set_num_threads(cfg.trainer.num_threads)
    target = build_target(cfg)
    choice = LayoutChoice(Path(cfg.paths.cache)) if cfg.decode.kernels != "plain" else None
    if choice is not None:
        reason = target.make_fast(choice)
        if reason:
            log.info("eval: %s decodes through Transformers (%s)", target.name, reason)
    task_prompts = build_part(cfg.task, name=cfg.task.name).load(cfg.decode.num_prompts)
    models: dict[Path, DraftModel] = {}
    arms = [_arm(variant, target, models) for variant in variants]
    if choice is not None:
        for model in models.values():
            model.make_fast(choice)
    facts = _measured_facts(target, task_prompts)
    for variant in variants:
        own = {"num_prompts": len(task_prompts), "model_sha256": variant.model_sha256}
        variant.store.claim({**variant_facts(variant.cfg), **own, **facts})
    prompts = [
        MeasuredPrompt(item.id, item.domain, tuple(target.encode_chat(item.messages)))
        for item in task_prompts
    ]
    _check_lengths(prompts, cfg.decode.max_new_tokens, target)
    _run_rounds(variants, arms, target, prompts, termination)
    for variant in variants:
        variant.store.close(variant.model_sha256)


def _check_lengths(
    prompts: Sequence[MeasuredPrompt], max_new_tokens: int, target: TargetModel
) -> None:
    """Raises ValueError for a prompt that leads beyond the positions the target knows."""
    limit = target.config.max_position_embeddings
    for prompt in prompts:
        if len(prompt.ids) + max_new_tokens > limit:
            raise ValueError(
                f"prompt {prompt.id} of {len(prompt.ids)} tokens and decode.max_new_tokens="
                f"{max_new_tokens} exceed the target's {limit} positions; remove it from the task"
            )


def _measured_facts(target: TargetModel, prompts: Sequence[TaskPrompt]) -> dict[str, Any]:
    """Facts of variant.json that the config does not know."""
    return {
        "prompts_sha256": prompts_sha256(prompts),
        "device": device_name(target.device),
        "target": target.name,
        **git_state(),
    }


def device_name(device: torch.device) -> str:
    """What the times were measured on; threads count on a CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {device.type}, {torch.get_num_threads()} threads"


def _arm(variant: Variant, target: TargetModel, models: dict[Path, DraftModel]) -> Arm:
    cfg, path = variant.cfg, run_path(variant.cfg)
    if path not in models:
        models[path] = load_model(cfg, target)
    draft_temperature = cfg.decode.draft_temperature
    solver = build_part(cfg.solver)
    if cfg.decode.kernels == "compiled":
        solver = CompiledSolver(solver)
    return Arm(
        name=variant.name,
        seed=cfg.seed,
        model=models[path],
        solver=solver,
        verifier=build_part(cfg.verifier),
        draft_temperature=None if draft_temperature == "same" else float(draft_temperature),
    )


def _run_rounds(
    variants: Sequence[Variant],
    arms: Sequence[Arm],
    target: TargetModel,
    prompts: Sequence[MeasuredPrompt],
    termination: Termination,
) -> None:
    """Decode and record every round that a variant lacks, after discarded warm-up rounds."""
    decode = variants[0].cfg.decode
    temperatures = [float(value) for value in decode.temperatures]
    recorded = [variant.store.recorded() for variant in variants]
    rounds = missing_rounds(recorded, [prompt.id for prompt in prompts], temperatures)
    limit: dict[str, Any] = {
        "max_new_tokens": decode.max_new_tokens,
        "truncation": Truncation(decode.top_k, decode.top_p),
    }
    progress = tqdm(total=len(rounds), desc="eval", unit="prompt", mininterval=PROGRESS_SECONDS)
    warm: set[float] = set()
    with progress:
        for indices, temperature, lacking in _batches(rounds, decode.batch):
            chosen = [arms[i] for i in lacking]
            limit["temperature"] = temperature
            if temperature not in warm:
                for turn in range(decode.warmup_rounds):
                    some = [prompts[(turn + k) % len(prompts)] for k in range(len(indices))]
                    measure(target, arms, some, index=turn, **limit)
                warm.add(temperature)
            asked = [prompts[index] for index in indices]
            results = measure(target, chosen, asked, index=indices[0] // decode.batch, **limit)
            with termination.deferred():
                for index, result in zip(indices, results, strict=True):
                    for i in lacking:
                        position, trace = result.arms[arms[i].name]
                        variants[i].store.append(
                            EvalRecord(
                                prompt_id=prompts[index].id,
                                domain=prompts[index].domain,
                                temperature=temperature,
                                round=index,
                                position=position,
                                ar=result.baseline,
                                arm=trace,
                            )
                        )
            progress.update(len(indices))


def _batches(
    rounds: Sequence[tuple[int, float, list[int]]], size: int
) -> Iterator[tuple[list[int], float, list[int]]]:
    """Prompts that are decoded together: `size` neighbours that the same variants lack."""
    for (temperature, lacking), group in groupby(rounds, key=lambda entry: entry[1:]):
        indices = [index for index, _, _ in group]
        for start in range(0, len(indices), size):
            yield indices[start : start + size], temperature, lacking
