"""train: co-train drafter and head of one run; resumes from its last checkpoint."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import lightning
import torch
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities.exceptions import SIGTERMException
from omegaconf import DictConfig
from torch.utils.data import DataLoader, IterableDataset

from xpress_exp.builders import (
    DraftModel,
    build_model,
    build_part,
    build_target,
    save_model,
)
from xpress_exp.data.datamodule import BatchStream, ResponseDataModule
from xpress_exp.export import target_facts
from xpress_exp.run_dir import RunDir
from xpress_exp.schema import run_path, science
from xpress_exp.stage.prepare import load_prepared
from xpress_exp.target import TargetModel
from xpress_exp.train.callback import MetricsFile, ResumeCheckpoint, StepLog, Validation
from xpress_exp.train.checkpoint_io import PlainCheckpointIO
from xpress_exp.train.module import CoTrainModule
from xpress_exp.types import TrainBatch

log = logging.getLogger(__name__)
# Lightning greets with hardware facts and advertisements; our own lines say what matters.
for _chatter in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(_chatter).setLevel(logging.ERROR)


def train(cfg: DictConfig) -> None:
    """Train the run that cfg describes, unless it is done; writes <run>/model.safetensors.

    SIGTERM saves a checkpoint after the current step and exits with status 143; the same command
    goes on from there to the same weights. Raises ArtefactError when the run directory belongs to
    another configuration or its checkpoint is damaged, ValueError for unusable settings.
    """
    run = RunDir(run_path(cfg))
    run.claim(science(cfg))
    if run.done("train") is not None:
        log.info("train: %s is done", run.name)
        return
    lightning.seed_everything(cfg.seed, verbose=False)
    target = build_target(cfg)
    model = build_model(cfg, target)
    told = target_facts(target, cfg.target.name, cfg.target.get("name_or_path"))
    # Of the target: whoever starts from this run's drafter compares them with its own.
    facts: dict[str, Any] = {
        "optimizer_steps": cfg.optim.max_steps,
        "target_facts": asdict(told),
    }
    if cfg.optim.max_steps > 0:
        if cfg.trainer.num_threads:
            torch.set_num_threads(cfg.trainer.num_threads)
        facts |= _fit(cfg, run, target, model)
    run.mark_done("train", {**facts, "model_sha256": save_model(run, model)})


class OptimizerSteps(IterableDataset[list[TrainBatch]]):
    """All micro-batches of one optimizer step at a time."""

    def __init__(self, stream: BatchStream, accumulate: int) -> None:
        self._stream = stream
        self._accumulate = accumulate

    def __iter__(self) -> Iterator[list[TrainBatch]]:
        micro_batches = iter(self._stream)
        while True:
            yield [next(micro_batches) for _ in range(self._accumulate)]


class StepDataModule(ResponseDataModule):
    """The response data, grouped by optimizer step and started where the trainer stands."""

    def __init__(self, accumulate: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._accumulate = accumulate

    def train_dataloader(self) -> Any:
        assert self.trainer is not None
        self.start_step = self.trainer.global_step * self._accumulate
        stream = self.stream(self.trainer.global_rank, self.trainer.world_size)
        return DataLoader(OptimizerSteps(stream, self._accumulate), batch_size=None)


def _fit(cfg: DictConfig, run: RunDir, target: TargetModel, model: DraftModel) -> dict[str, Any]:
    prepared = load_prepared(cfg, target)
    data = StepDataModule(
        accumulate=cfg.trainer.accumulate_grad_batches,
        store=prepared.documents,
        seed=cfg.seed,
        documents_per_step=cfg.data.documents_per_step,
        anchors_per_document=cfg.data.anchors_per_document,
    )
    module = CoTrainModule(model, target, build_part(cfg.objective), build_part(cfg.optim))
    metrics = MetricsFile(run.metrics_file)
    trainer = lightning.Trainer(
        accelerator=cfg.trainer.accelerator,
        devices=cfg.trainer.devices,
        precision=cfg.trainer.precision,
        max_steps=cfg.optim.max_steps,
        max_epochs=-1,
        logger=_loggers(cfg, run),
        callbacks=[
            metrics,
            StepLog(metrics, cfg.optim.max_steps, run.name),
            _validation(cfg, metrics, data, prepared.documents),
            ResumeCheckpoint(run, cfg.trainer.checkpoint_every_steps),
        ],
        plugins=[PlainCheckpointIO()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        use_distributed_sampler=False,
        default_root_dir=run.path,
    )
    resume = run.last_checkpoint if run.last_checkpoint.exists() else None
    if resume is not None:
        log.info("train: resuming from %s", resume)
    with default_sigterm():
        try:
            trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=True)
        except SIGTERMException:
            log.warning("train: SIGTERM; %s saved at step %d", run.name, trainer.global_step)
            sys.exit(143)
        finally:
            # W&B hands the open run to the next logger: the next training would log into this one.
            for logger in trainer.loggers:
                if isinstance(logger, WandbLogger):
                    logger.experiment.finish()
    if trainer.received_sigterm:
        # It came in the last step, after which Lightning ends as if nothing had happened. The
        # checkpoint is complete: the next call only writes the model.
        sys.exit(143)
    model.eval()
    return prepared.facts


def _validation(
    cfg: DictConfig, metrics: MetricsFile, data: StepDataModule, documents: Any
) -> Validation:
    chosen = data.validation_indices[: cfg.trainer.val_prompts]
    return Validation(
        metrics,
        batches=list(data.val_dataloader()),
        documents=[documents.document(index) for index in chosen],
        solver=build_part(cfg.solver),
        every_steps=cfg.trainer.val_every_steps,
        max_new_tokens=cfg.trainer.val_max_new_tokens,
    )


def _loggers(cfg: DictConfig, run: RunDir) -> Any:
    """W&B: one run per training, found again by its name; False for none."""
    if cfg.logger.name == "none" or cfg.logger.mode == "disabled":
        return False
    logger = WandbLogger(
        project=cfg.logger.project,
        entity=cfg.logger.entity,
        name=run.name,
        id=run.name,
        group=cfg.experiment,
        job_type="train",
        save_dir=run.path,
        offline=cfg.logger.mode == "offline",
        resume="allow",
        config=science(cfg),
        settings={"silent": True},
    )
    logger.experiment.define_metric("*", step_metric="optimizer_step")
    return logger


@contextlib.contextmanager
def default_sigterm() -> Iterator[None]:
    """Let Lightning alone handle SIGTERM: it finishes the step, another handler would not."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
