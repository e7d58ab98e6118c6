"""export: a trained drafter as a checkpoint folder that serving engines and `drafter.init` read."""

from __future__ import annotations

import logging
from pathlib import Path

from omegaconf import DictConfig

from xpress_exp.builders import build_target, load_model
from xpress_exp.export import write_dflash
from xpress_exp.run_dir import RunDir, provenance
from xpress_exp.schema import plain, run_path

log = logging.getLogger(__name__)


def export(cfg: DictConfig) -> None:
    """Write the run's bare drafter to paths.export, or to <run>/export without one.

    Raises ValueError for a run with a head: this layout has no place for one.
    """
    if cfg.head.name != "none":
        raise ValueError(
            f"head={cfg.head.name} cannot be exported as a bare dFlash checkpoint; use head=none"
        )
    target = build_target(cfg)
    model = load_model(cfg, target)
    run = RunDir(run_path(cfg))
    folder = Path(cfg.paths.export) if cfg.paths.export else run.path / "export"
    drafter = {key: value for key, value in plain(cfg.drafter).items() if key != "_target_"}
    facts = {
        "name": cfg.target.name,
        "num_layers": target.num_layers,
        "hidden_size": target.hidden_size,
        "vocab_size": target.vocab_size,
        "rope_parameters": dict(target.config.rope_parameters),
    }
    training = run.done("train") or {}
    digest = write_dflash(
        folder, model.drafter.state_dict(), drafter, facts, {**provenance(), "training": training}
    )
    log.info("export: %s (sha256 %s)", folder, digest[:10])
