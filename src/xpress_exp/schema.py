"""What a composed config means: which run it is, how that run is decoded, which points coincide.

Imports nothing heavy: it serves `--help`, the checks and the stages alike.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from xpress_exp.run_dir import fingerprint, read_json, sha256_file

STAGES = ("prepare", "train", "export", "eval", "report")
SCIENCE_GROUPS = ("data", "target", "drafter", "head", "objective", "optim")
TRAINER_SCIENCE = ("accumulate_grad_batches", "precision")
DECODE_SCIENCE = (
    "temperatures", "draft_temperature", "max_new_tokens", "num_prompts", "batch", "kernels",
)  # fmt: skip
TRUNCATION = ("top_k", "top_p")
COUPLED_VERIFIER = "gumbel_coupled"
RELEASED, SCRATCH = "released", "scratch"
# Local files and folders that a config names: another content under the same name is another run.
CONTENT_KEYS = ("data.source.path", "target.name_or_path", "drafter.draft_vocab")
# Published decay_gamma up to a block size: 4 for 7 and 8, 5 for 10, 7 for 16.
GAMMAS = ((8, 4.0), (12, 5.0), (float("inf"), 7.0))
# Limits of memory, of files and of patience: they change no weight beyond rounding.
LOCAL_KEYS = (
    ("data", "max_broken_share"),
    ("data", "features", "shard_tokens"),
    ("objective", "chunk_blocks"),
    ("objective", "backward"),
)
# Keys that came later: left at null they are the run that had no such key.
ADDED_KEYS = (("head", "token_std"),)


def plain(cfg: Any) -> Any:
    """The resolved config node as dicts, lists and scalars."""
    return OmegaConf.to_container(cfg, resolve=True) if OmegaConf.is_config(cfg) else cfg


def settle(cfg: DictConfig) -> DictConfig:
    """Make the config say what will happen: an untrained arm takes no step, whatever max_steps
    an experiment or the command line asked of the others, and decay_gamma null is the published
    value for the block size. Changes cfg in place, returns it."""
    # Before the checks: a value may still be anything, or missing.
    if OmegaConf.select(cfg, "arm.trained") is False:
        cfg.optim.max_steps = 0
    block_size = OmegaConf.select(cfg, "drafter.block_size")
    if OmegaConf.select(cfg, "objective.decay_gamma", default=0) is None and isinstance(
        block_size, int
    ):
        cfg.objective.decay_gamma = next(g for size, g in GAMMAS if block_size <= size)
    return cfg


def science(cfg: DictConfig) -> dict[str, Any]:
    """Everything that changes the weights of a run, resolved, and nothing else."""
    content: dict[str, Any] = {group: plain(cfg[group]) for group in SCIENCE_GROUPS}
    for *parents, key in LOCAL_KEYS:
        node = content
        for parent in parents:
            node = node.get(parent, {})
        node.pop(key, None)
    if not cfg.arm.trained:
        content["optim"]["max_steps"] = 0
    content["initial_drafter_sha256"] = initial_sha256(cfg)
    named = {key: content_sha256(OmegaConf.select(cfg, key)) for key in CONTENT_KEYS}
    if files := {key: digest for key, digest in named.items() if digest is not None}:
        content["files"] = files
    if cfg.head.name == "none":
        content["head"].pop("rank", None)
    for group, key in ADDED_KEYS:
        if content[group].get(key, ...) is None:
            del content[group][key]
    content["seed"] = cfg.seed
    content["trainer"] = {key: cfg.trainer[key] for key in TRAINER_SCIENCE}
    return _canonical(content)


def _canonical(value: Any) -> Any:
    """Write 1.0 as 1: a number is the same science however it was typed."""
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def initial_folder(cfg: DictConfig) -> Path | None:
    """Folder of the drafter that training starts from, or None for scratch."""
    if cfg.drafter.init == SCRATCH:
        return None
    if cfg.drafter.init == RELEASED:
        return Path(str(resources.files("xpress_exp") / "asset" / "dflash_smollm2"))
    return Path(cfg.drafter.init)


def initial_sha256(cfg: DictConfig) -> str | None:
    """Hash of the initial drafter's weights: another drafter makes another run.

    None for scratch, and for a folder without weights.
    """
    folder = initial_folder(cfg)
    if folder is None:
        return None
    return recorded_sha256(folder) or content_sha256(str(weights_file(folder)))


def weights_file(folder: Path) -> Path:
    """model.safetensors of a run or checkpoint folder, or its only `.pt` where there is none."""
    pickles = sorted(folder.glob("*.pt"))
    file = folder / "model.safetensors"
    return pickles[0] if len(pickles) == 1 and not file.exists() else file


def recorded_sha256(folder: Path) -> str | None:
    """Hash that export or training wrote beside the weights; None when there is none."""
    for name in ("provenance.json", "train.done.json"):
        record = folder / name
        if record.exists() and "model_sha256" in (content := read_json(record)):
            return content["model_sha256"]
    return None


def content_sha256(path: str | None) -> str | None:
    """Hash of a local file, or of a local model folder's config and weights; None for anything
    else. Read again only when size or time of a file has changed."""
    if path is None:
        return None
    root = Path(path)
    inside = [root / "config.json", *sorted(root.glob("*.safetensors"))]
    present = [file for file in (inside if root.is_dir() else [root]) if file.is_file()]
    if not present:
        return None
    return fingerprint([[file.name, _file_sha256(file, *_stamp(file))] for file in present])


def _stamp(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns


@functools.lru_cache(maxsize=256)
def _file_sha256(file: Path, _size: int, _time: int) -> str:
    return sha256_file(file)


def run_name(cfg: DictConfig) -> str:
    """`<arm>-b<block>-s<seed>-<fingerprint of the science>`."""
    identity = fingerprint(science(cfg))
    return f"{cfg.arm.name}-b{cfg.drafter.block_size}-s{cfg.seed}-{identity}"


def run_path(cfg: DictConfig) -> Path:
    """Directory of the run that this config describes, or of the run that it names."""
    if cfg.get("run"):
        return Path(cfg.run)
    return Path(cfg.paths.runs) / run_name(cfg)


def decode_science(cfg: DictConfig) -> dict[str, Any]:
    """Everything that changes what a run's model decodes, or how fast; equal for equal settings.

    solver: name and options; num_iterations is None where it has no effect. Without a head every
    solver is 'parallel', as there is nothing to solve. top_k and top_p are there when they filter.
    """
    content = {
        "solver": _effective_solver(cfg),
        "verifier": plain(cfg.verifier),
        "task": {**plain(cfg.task), "sha256": content_sha256(cfg.task.get("path"))},
        **{key: plain(cfg.decode[key]) for key in DECODE_SCIENCE},
        **{key: cfg.decode[key] for key in TRUNCATION if cfg.decode[key] is not None},
    }
    return _canonical(content)


def _effective_solver(cfg: DictConfig) -> dict[str, Any]:
    if cfg.head.name == "none":
        return {"name": "parallel", "num_iterations": None}
    solver = {key: value for key, value in plain(cfg.solver).items() if key != "_target_"}
    if solver["name"] != "jacobi":
        return {**solver, "num_iterations": None}
    if solver["num_iterations"] == 0:
        # The base draft: no pass is made, so no option of the passes counts.
        return {"name": "jacobi", "num_iterations": 0}
    return solver


def unique_points(cfgs: Iterable[DictConfig]) -> list[DictConfig]:
    """The first of every set of points with the same run and the same decoding, in order."""
    found: dict[tuple[Path, str], DictConfig] = {}
    for cfg in cfgs:
        found.setdefault((run_path(cfg), fingerprint(decode_science(cfg))), cfg)
    return list(found.values())
