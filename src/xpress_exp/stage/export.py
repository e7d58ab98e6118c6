"""export: a trained run as a checkpoint folder that engines, `drafter.init` and `load` read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from xpress_exp.builders import DraftModel, build_target, load_model
from xpress_exp.export import Content, model_card, target_facts, write_folder
from xpress_exp.metric import acceptance, read_records, speedup
from xpress_exp.run_dir import ArtefactError, RunDir, provenance, read_json
from xpress_exp.schema import SCIENCE_GROUPS, TRAINER_SCIENCE, plain, run_path
from xpress_exp.target import TargetModel

log = logging.getLogger(__name__)


def export(cfg: DictConfig) -> Path:
    """Write the run in the format of the export group to paths.export, or to
    <run>/export/<format> without one; returns the folder.

    With `run` set, that run is read with its stored configuration. Raises ValueError for a drafter
    or head that the format has no place for, ArtefactError for a run that is not finished.
    """
    run = RunDir(run_path(cfg))
    cfg = cfg if cfg.run is None else stored_config(cfg, run)
    target = build_target(cfg)
    model = load_model(cfg, target)
    name = cfg.export.name
    folder = Path(cfg.paths.export) if cfg.paths.export else run.path / "export" / name
    content = content_of(cfg, model, target)
    facts = {**provenance(), "run": run.name, "training": run.done("train") or {}}
    card = model_card(name, content, facts, measurements(run))
    digest = write_folder(folder, name, content, cfg.export.dtype, facts, card)
    log.info("export: %s (%s, sha256 %s)", folder, name, digest[:10])
    return folder


def stored_config(cfg: DictConfig, run: RunDir) -> Any:
    """cfg with the science of another run in place of its own."""
    stored = read_json(run.config_file)
    lacking = [group for group in SCIENCE_GROUPS if group not in stored]
    if lacking:
        raise ArtefactError(f"{run.config_file} lacks {', '.join(lacking)}; it is no run of ours")
    merged: dict[str, Any] = plain(cfg)
    merged |= {group: stored[group] for group in (*SCIENCE_GROUPS, "seed")}
    merged["trainer"] |= {key: stored["trainer"][key] for key in TRAINER_SCIENCE}
    return OmegaConf.create(merged)


def content_of(cfg: DictConfig, model: DraftModel, target: TargetModel) -> Content:
    """The run's model in the words of its config groups."""
    solver = cfg.solver
    return Content(
        drafter={key: value for key, value in plain(cfg.drafter).items() if key != "_target_"},
        head=plain(cfg.head),
        target=target_facts(target, cfg.target.name, cfg.target.get("name_or_path")),
        tensors=model.state_dict(),
        vocab_ids=model.vocab_ids,
        shared={"embed_tokens.weight": target.embedding, "lm_head.weight": target.lm_head},
        num_passes=solver.num_iterations if solver.name == "jacobi" else None,
    )


def measurements(run: RunDir) -> list[dict[str, Any]]:
    """One row for the model card per finished evaluation and temperature."""
    rows = []
    for mark in sorted(run.path.glob("eval/*/eval.done.json")):
        variant = read_json(mark.parent / "variant.json")
        records = read_records(mark.parent / f"{variant['task']}.jsonl")
        for temperature in sorted({record.temperature for record in records}):
            own = [record for record in records if record.temperature == temperature]
            rows.append({**_columns(variant), "temperature": temperature, **_numbers(own)})
    return rows


def _columns(variant: Mapping[str, Any]) -> dict[str, Any]:
    passes = variant["num_iterations"]
    return {
        "task": variant["task"],
        "solver": variant["solver"],
        "passes": "-" if passes is None else passes,
    }


def _numbers(records: list[Any]) -> dict[str, Any]:
    return {
        "prompts": len(records),
        "tau": f"{acceptance([record.arm for record in records]).tau:.2f}",
        "speed-up": f"{speedup(records).ratio:.2f}",
    }
