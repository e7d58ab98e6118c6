"""Micro-batches as a pure function of (seed, step, rank): a resumed run sees the same data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from xpress_exp.data.anchor import generator_of, sample_anchors
from xpress_exp.data.document import DocumentStore
from xpress_exp.types import TrainBatch

# Held-back documents and their anchors are the same for every run seed.
VALIDATION_SEED = 0
NUM_VALIDATION_DOCUMENTS = 32
MAX_VALIDATION_SHARE = 0.02


def split_validation(num_documents: int, num_validation: int) -> tuple[list[int], list[int]]:
    """(training, validation) document indices; disjoint, independent of the run's seed.

    At most 2 % are held back, at least one. Raises ValueError when nothing is left to train on.
    """
    if num_documents < 2:
        raise ValueError(
            f"{num_documents} usable documents cannot be split into training and validation; "
            "raise data.source.num_prompts"
        )
    held_back = max(1, min(num_validation, int(num_documents * MAX_VALIDATION_SHARE)))
    order = torch.randperm(num_documents, generator=generator_of("validation", VALIDATION_SEED))
    return sorted(order[held_back:].tolist()), sorted(order[:held_back].tolist())


def pack(
    store: DocumentStore,
    indices: Sequence[int],
    step: int,
    anchors_per_document: int,
    anchor_key: tuple[int, int, int],
) -> TrainBatch:
    """Documents end to end; anchors drawn with (seed, step, rank) = anchor_key."""
    documents = [store.document(index) for index in indices]
    lengths = torch.tensor([len(document.input_ids) for document in documents])
    document_ids = torch.repeat_interleave(torch.arange(len(documents)), lengths)
    loss_mask = torch.cat([document.loss_mask for document in documents])
    seed, draw, rank = anchor_key
    return TrainBatch(
        step=step,
        input_ids=torch.cat([document.input_ids for document in documents]),
        document_ids=document_ids,
        position_ids=torch.cat([torch.arange(int(length)) for length in lengths]),
        loss_mask=loss_mask,
        anchors=sample_anchors(loss_mask, document_ids, anchors_per_document, seed, draw, rank),
        features=_joined([document.features for document in documents]),
        last_hidden=_joined([document.last_hidden for document in documents]),
    )


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None


class BatchStream(IterableDataset[TrainBatch]):
    """The endless stream of one rank's micro-batches, starting at any step.

    The documents of all epochs form one sequence of seeded permutations. Step s of W ranks with D
    documents each takes its places s*D*W onwards; rank r takes the r-th D of them.
    """

    def __init__(
        self,
        store: DocumentStore,
        indices: Sequence[int],
        *,
        seed: int,
        documents_per_step: int,
        anchors_per_document: int,
        start_step: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._store, self._indices = store, list(indices)
        self._seed, self._rank, self._world_size = seed, rank, world_size
        self._documents_per_step = documents_per_step
        self._anchors_per_document = anchors_per_document
        self._start_step = start_step
        self._epoch: tuple[int, list[int]] = (-1, [])

    def __iter__(self) -> Iterator[TrainBatch]:
        step = self._start_step
        while True:
            yield self.batch(step)
            step += 1

    def documents_of(self, step: int) -> list[int]:
        """Indices into the store of this rank's documents at micro-batch `step`."""
        count = self._documents_per_step
        start = (step * self._world_size + self._rank) * count
        return [self._at(place) for place in range(start, start + count)]

    def batch(self, step: int) -> TrainBatch:
        """Micro-batch `step`, whatever was asked before."""
        return pack(
            self._store,
            self.documents_of(step),
            step,
            self._anchors_per_document,
            (self._seed, step, self._rank),
        )

    def _at(self, place: int) -> int:
        epoch, offset = divmod(place, len(self._indices))
        if self._epoch[0] != epoch:
            generator = generator_of("order", self._seed, epoch)
            order = torch.randperm(len(self._indices), generator=generator).tolist()
            self._epoch = (epoch, order)
        return self._indices[self._epoch[1][offset]]


class ValidationBatches(IterableDataset[TrainBatch]):
    """All held-back documents once, with fixed anchors; equal on every rank and in every run."""

    def __init__(
        self,
        store: DocumentStore,
        indices: Sequence[int],
        documents_per_step: int,
        anchors_per_document: int,
    ) -> None:
        self._store, self._indices = store, list(indices)
        self._documents_per_step = documents_per_step
        self._anchors_per_document = anchors_per_document

    def __iter__(self) -> Iterator[TrainBatch]:
        starts = range(0, len(self._indices), self._documents_per_step)
        for step, start in enumerate(starts):
            chosen = self._indices[start : start + self._documents_per_step]
            key = (VALIDATION_SEED, step, 0)
            yield pack(self._store, chosen, step, self._anchors_per_document, key)


class ResponseDataModule(lightning.LightningDataModule):
    """Training and validation batches over a document store.

    documents_per_step counts documents per micro-batch and rank; start_step is the index of the
    first micro-batch (resuming: the number already done). Rank and world size come from the
    trainer. Every rank validates on all held-back documents, so that no rank waits for another.
    """

    def __init__(
        self,
        store: DocumentStore,
        *,
        seed: int,
        documents_per_step: int,
        anchors_per_document: int,
        start_step: int = 0,
        num_validation: int = NUM_VALIDATION_DOCUMENTS,
    ) -> None:
        super().__init__()
        self._store, self._seed, self.start_step = store, seed, start_step
        self._documents_per_step = documents_per_step
        self._anchors_per_document = anchors_per_document
        self.train_indices, self.validation_indices = split_validation(len(store), num_validation)

    def stream(self, rank: int = 0, world_size: int = 1) -> BatchStream:
        """The training stream of one rank."""
        return BatchStream(
            self._store,
            self.train_indices,
            seed=self._seed,
            documents_per_step=self._documents_per_step,
            anchors_per_document=self._anchors_per_document,
            start_step=self.start_step,
            rank=rank,
            world_size=world_size,
        )

    def train_dataloader(self) -> DataLoader[TrainBatch]:
        trainer = self.trainer
        rank, world = (trainer.global_rank, trainer.world_size) if trainer else (0, 1)
        return DataLoader(self.stream(rank, world), batch_size=None)

    def val_dataloader(self) -> DataLoader[TrainBatch]:
        batches = ValidationBatches(
            self._store,
            self.validation_indices,
            self._documents_per_step,
            self._anchors_per_document,
        )
        return DataLoader(batches, batch_size=None)
