"""What a config point says about its variant: the facts that eval stores and report expects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from xpress_exp.run_dir import RunDir, fingerprint
from xpress_exp.schema import TRUNCATION, decode_science, run_name, run_path, science

# Settings that have a column of their own or decide the panel; the rest is spelt out.
COVERED = ("seed", "drafter.block_size", "head.rank", "head.name")
COVERED_DECODE = (
    "solver.name",
    "solver.num_iterations",
    "verifier.",
    "task.",
    "draft_temperature",
    "temperatures",
)


def variant_facts(cfg: DictConfig) -> dict[str, Any]:
    """The facts of variant.json that follow from the config alone."""
    decoding = decode_science(cfg)
    return {
        "run": run_name(cfg),
        "arm": cfg.arm.name,
        "head": cfg.head.name,
        "solver": decoding["solver"]["name"],
        "solver_options": decoding["solver"],
        "num_iterations": decoding["solver"]["num_iterations"],
        "rank": None if cfg.head.name == "none" else cfg.head.get("rank"),
        "block_size": cfg.drafter.block_size,
        "seed": cfg.seed,
        "verifier": cfg.verifier.name,
        "task": cfg.task.name,
        "draft_temperature": cfg.decode.draft_temperature,
        "max_new_tokens": cfg.decode.max_new_tokens,
        "num_prompts": cfg.decode.num_prompts,
    }


def eval_dir(cfg: DictConfig) -> Path:
    """Folder of the variant's records."""
    return RunDir(run_path(cfg)).eval_dir(fingerprint(decode_science(cfg)))


def recipe(cfg: DictConfig) -> str:
    """Fingerprint of how the run was trained apart from its head: equal for fair comparisons."""
    content = science(cfg)
    del content["head"]
    return fingerprint(content)


def flattened(content: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> leaf of nested dicts; lists are leaves."""
    if not isinstance(content, Mapping):
        return {prefix: content}
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat.update(flattened(value, f"{prefix}.{key}" if prefix else str(key)))
    return flat


def varied_settings(cfgs: Sequence[DictConfig]) -> list[str]:
    """For each point 'key=value ...' of the settings in which points of its arm differ and that
    no column shows, so that two variants never share a label."""
    flat = [_labelled(cfg) for cfg in cfgs]
    texts = []
    for cfg, own in zip(cfgs, flat, strict=True):
        peers = [f for other, f in zip(cfgs, flat, strict=True) if other.arm.name == cfg.arm.name]
        # A peer without the key differs in a setting that has a column: the solver's own options.
        varied = [k for k in own if any(k in peer and peer[k] != own[k] for peer in peers)]
        texts.append(" ".join(f"{key}={own[key]}" for key in varied))
    return texts


def _labelled(cfg: DictConfig) -> dict[str, Any]:
    training = {k: v for k, v in flattened(science(cfg)).items() if k not in COVERED}
    decoding = flattened(decode_science(cfg))
    shown = {k: v for k, v in decoding.items() if not k.startswith(COVERED_DECODE)}
    return {**training, **dict.fromkeys(TRUNCATION), **shown}
