"""Our steps of the training job: `train_job.serve` runs them in a process, `floor.py` in its own.

python benchmarks/train_worker.py keep|return    keep: set the allocator as our commands do
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "parity"))

import torch
import train_job as job
from cases_speculators import XPRESS_NAMES
from torch import nn

from xpress_exp.allocator import keep_freed_memory
from xpress_exp.data.anchor import block_targets
from xpress_exp.drafter import DFlashDrafter, block_groups
from xpress_exp.head import CorrectionHead, NoHead, XPressHead
from xpress_exp.objective import CoTrainObjective
from xpress_exp.types import BlockTargets, ModelDims, SlotConvention, SlotMap, TrainBatch

SLOTS = SlotMap(SlotConvention.FILL_IN, job.BLOCK)
DIMS = ModelDims(job.HIDDEN, job.VOCAB, job.VOCAB, SLOTS)


def fill(module: nn.Module, prefix: str, names: dict[str, str]) -> None:
    """Give each parameter the job's numbers; names: ours to those of the job."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(job.noise(prefix + names.get(name, name), *parameter.shape))


def build_drafter(embedding: torch.Tensor) -> DFlashDrafter:
    powers = torch.arange(0, job.HEAD_DIM, 2).float() / job.HEAD_DIM
    drafter = DFlashDrafter(
        DIMS,
        feature_size=job.NUM_FEATURES * job.HIDDEN,
        token_embedding=embedding,
        rope_inv_freq=1.0 / job.THETA**powers,
        rope_scale=1.0,
        num_layers=job.LAYERS,
        intermediate_size=job.INTERMEDIATE,
        num_heads=job.HEADS,
        num_kv_heads=job.KV_HEADS,
        head_dim=job.HEAD_DIM,
        mask_token_id=job.MASK_ID,
    )
    fill(drafter, "", {})
    return drafter


def build_head(model: str, embedding: torch.Tensor) -> CorrectionHead:
    if model == "dflash":
        return NoHead(DIMS, embedding)
    head = XPressHead(
        DIMS, embedding, job.RANK, mix="inclusive", token_init="random", anchor_prev="predecessor"
    )
    fill(head, "refiner_head.", XPRESS_NAMES)
    return head


def build_batch(num_anchors: int) -> TrainBatch:
    tensors = job.batch(num_anchors)
    raw = tensors.pop("raw_hidden")
    mask = tensors.pop("loss_mask").bool()
    last = nn.functional.rms_norm(raw, (job.HIDDEN,), eps=1e-6)
    return TrainBatch(step=0, loss_mask=mask, last_hidden=last, **tensors)


def build_objective(
    model: str, backward: str = "fused", chunk_blocks: int = 16
) -> CoTrainObjective:
    co_trained = model == "xpress"
    return CoTrainObjective(
        ce_weight=job.CE_WEIGHT,
        l1_weight=job.TV_WEIGHT / 2,
        decay_gamma=job.GAMMA,
        w_anchor={"start": job.W_ANCHOR, "end": job.W_ANCHOR, "schedule": "constant"},
        w_consistency=job.W_CONSISTENCY * co_trained,
        consistency_passes=job.PASSES,
        chunk_blocks=chunk_blocks,
        backward=backward,  # type: ignore[arg-type]
    )


def targets_of(batch: TrainBatch, model: str, head: CorrectionHead, lm_head: torch.Tensor):
    """Labels as the peer has them: the text for xPress, the target's argmax for dFlash."""

    def targets() -> BlockTargets:
        return block_targets(batch, SLOTS, job.GAMMA, head.anchor_prev)

    if model == "xpress":
        return targets
    labels = torch.stack([(rows @ lm_head.T).argmax(-1) for rows in targets().target_hidden])
    return lambda: replace(targets(), labels=labels)


def prepare(work: job.Work) -> Callable[[], float]:
    """variant: `objective.backward`, or that and a number of blocks per chunk ('fused:8')."""
    backward, _, chunk = work.variant.partition(":")
    lm_head = job.noise("lm_head.weight", job.VOCAB, job.HIDDEN)
    embedding = job.noise("embed_tokens.weight", job.VOCAB, job.HIDDEN)
    drafter, head = build_drafter(embedding), build_head(work.model, embedding)
    head.train()
    batch = build_batch(work.anchors)
    objective = build_objective(work.model, backward, int(chunk or 16))
    targets = targets_of(batch, work.model, head, lm_head)

    def step() -> float:
        drafter.zero_grad(set_to_none=True)
        head.zero_grad(set_to_none=True)
        wanted = targets()
        hidden = drafter(
            batch.features,
            batch.position_ids,
            batch.input_ids[batch.anchors],
            batch.position_ids[batch.anchors],
            block_groups(batch.anchors, batch.document_ids, job.BLOCK),
        )
        # The peer divides by the number of labels.
        count = (wanted.weights > 0).sum().float()
        losses = objective(hidden, head, lm_head, None, wanted, SLOTS, 0.0, count)
        losses.total.backward()
        return float(losses.total.detach())

    return step


if __name__ == "__main__":
    if sys.argv[1:] == ["keep"]:
        keep_freed_memory()
    job.serve(prepare)
