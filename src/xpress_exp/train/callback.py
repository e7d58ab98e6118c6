"""What happens around the steps: logs, progress, checkpoints, validation."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from tqdm import tqdm

from xpress_exp.data.document import Document
from xpress_exp.decode.loop import decode_speculative
from xpress_exp.run_dir import RunDir, atomic_path
from xpress_exp.train.module import CoTrainModule
from xpress_exp.types import SampleTrace, TrainBatch, nan_free_mean
from xpress_exp.verifier import GreedyVerifier


class MetricsFile(Callback):
    """Appends one JSON line per optimizer step and per validation; W&B only mirrors it.

    After a resume, lines of steps that will be repeated are dropped, so each step occurs once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        if not trainer.is_global_zero:
            return
        kept = [line for line in self._lines() if json.loads(line)["step"] <= trainer.global_step]
        with atomic_path(self.path) as temporary:
            temporary.write_text("".join(kept), encoding="utf-8")

    def _lines(self) -> list[str]:
        if not self.path.exists():
            return []
        # A kill may have cut the last line; only whole lines count.
        text = self.path.read_text(encoding="utf-8")
        return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def write(self, step: int, kind: str, metrics: Mapping[str, float]) -> None:
        """Append metrics of an optimizer step; nan becomes null (JSON has no nan)."""
        clean = {k: None if math.isnan(v) else v for k, v in metrics.items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "kind": kind, **clean}) + "\n")


class StepLog(Callback):
    """Progress with ETA, and each step's metrics to the file and the loggers."""

    def __init__(self, file: MetricsFile, max_steps: int, label: str) -> None:
        self.file = file
        self.max_steps = max_steps
        self.label = label
        self.bar: Any = None
        self.started = 0.0

    def on_train_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:  # noqa: ARG002
        self.bar = tqdm(
            total=self.max_steps,
            initial=trainer.global_step,
            desc=f"train {self.label}",
            unit="step",
            mininterval=5.0,
            disable=not trainer.is_global_zero,
        )

    def on_train_batch_start(self, *_arguments: Any) -> None:
        self.started = time.perf_counter()

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: CoTrainModule,
        *_rest: Any,  # type: ignore[override]
    ) -> None:
        metrics = pl_module.step_metrics
        self.bar.update()
        self.bar.set_postfix(loss=f"{metrics['loss']:.3f}", refresh=False)
        if not trainer.is_global_zero:
            return
        self.file.write(trainer.global_step, "train", metrics)
        seconds = time.perf_counter() - self.started
        log_mirror(trainer, "train", {**metrics, "step_seconds": seconds})

    def teardown(self, *_arguments: Any, **_keywords: Any) -> None:
        if self.bar is not None:
            self.bar.close()


def log_mirror(trainer: lightning.Trainer, kind: str, metrics: Mapping[str, float]) -> None:
    """Send metrics to every logger on the optimizer-step axis."""
    named = {f"{kind}/{name}": value for name, value in metrics.items()}
    for logger in trainer.loggers:
        logger.log_metrics({**named, "optimizer_step": trainer.global_step}, None)


class ResumeCheckpoint(Callback):
    """Keeps checkpoints/last.ckpt: every few steps and on SIGTERM, written whole or not at all."""

    def __init__(self, run: RunDir, every_steps: int) -> None:
        self.run = run
        self.every_steps = every_steps

    def on_train_batch_end(self, trainer: lightning.Trainer, *_rest: Any) -> None:
        due = trainer.global_step % self.every_steps == 0
        if due or trainer.received_sigterm:
            self.save(trainer)

    def save(self, trainer: lightning.Trainer) -> None:
        if not trainer.is_global_zero:
            # All ranks must call it; only rank 0 writes a file that could be renamed.
            trainer.save_checkpoint(self.run.last_checkpoint)
            return
        with atomic_path(self.run.last_checkpoint) as temporary:
            trainer.save_checkpoint(temporary)


class Validation(Callback):
    """Teacher-forced loss on held-back documents, and tau of the real decode loop on their prompts.

    A drafter can look well in teacher forcing and still fail when decoding; both are logged.
    """

    def __init__(
        self,
        file: MetricsFile,
        batches: Sequence[TrainBatch],
        documents: Sequence[Document],
        solver: Any,
        every_steps: int,
        max_new_tokens: int,
    ) -> None:
        self.file = file
        self.batches = batches
        self.documents = documents
        self.solver = solver
        self.every_steps = every_steps
        self.max_new_tokens = max_new_tokens

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: CoTrainModule,
        *_rest: Any,  # type: ignore[override]
    ) -> None:
        last = trainer.global_step == pl_module.optimizer_settings.max_steps
        if trainer.global_step % self.every_steps and not last:
            return
        pl_module.eval()
        metrics = {**self._losses(pl_module), **self._decode(pl_module)}
        pl_module.train()
        if trainer.is_global_zero:
            self.file.write(trainer.global_step, "validation", metrics)
            log_mirror(trainer, "validation", metrics)

    @torch.no_grad()
    def _losses(self, module: CoTrainModule) -> dict[str, float]:
        if not self.batches:
            return {}
        full = [module.with_features(batch.to(module.device)) for batch in self.batches]
        targets = [module.block_targets(batch) for batch in full]
        denominator = torch.stack([t.weights.sum() for t in targets]).sum().clamp(min=1e-6)
        results = [
            module.block_losses(batch, target, denominator)
            for batch, target in zip(full, targets, strict=True)
        ]
        return module.summarize(results, denominator)

    def _decode(self, module: CoTrainModule) -> dict[str, float]:
        traces: list[SampleTrace] = []
        for document in self.documents:
            prompt = document.input_ids[~document.loss_mask].tolist()
            traces.append(
                decode_speculative(
                    module.target,
                    module.model,
                    self.solver,
                    GreedyVerifier(),
                    prompt,
                    temperature=0.0,
                    draft_temperature=0.0,
                    max_new_tokens=self.max_new_tokens,
                    generator=None,
                )
            )
        rounds = [entry for trace in traces for entry in trace.rounds]
        committed = sum(entry.committed for entry in rounds)
        return {"tau": nan_free_mean(committed, len(rounds))}
