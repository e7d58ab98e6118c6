from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest
import torch
from torch import Tensor

from xpress_exp.data.anchor import anchor_candidates
from xpress_exp.data.datamodule import ResponseDataModule, split_validation
from xpress_exp.data.document import ResponseDocuments
from xpress_exp.data.feature_cache import cache_features
from xpress_exp.data.response import ResponseSet
from xpress_exp.target import TinyTarget
from xpress_exp.types import TrainBatch


def module(responses: ResponseSet, **changes: int) -> ResponseDataModule:
    settings = {"seed": 0, "documents_per_step": 2, "anchors_per_document": 3, **changes}
    return ResponseDataModule(ResponseDocuments(responses), **settings)  # type: ignore[arg-type]


def same(one: TrainBatch, other: TrainBatch) -> bool:
    pairs = [(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one)]
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


def test_a_resumed_stream_continues_the_straight_one(responses: ResponseSet) -> None:
    straight = list(itertools.islice(iter(module(responses).train_dataloader()), 20))
    for start in (1, 7, 13):  # 11 training documents: these lie in different epochs
        resumed = iter(module(responses, start_step=start).train_dataloader())
        assert all(
            same(expected, batch)
            for expected, batch in zip(straight[start:], resumed, strict=False)
        )
    assert [batch.step for batch in straight] == list(range(20))
    again = module(responses).stream().batch(13)
    assert same(again, straight[13])
    assert not same(module(responses, seed=1).stream().batch(13), again)


def test_an_epoch_visits_every_training_document_once(responses: ResponseSet) -> None:
    data = module(responses, documents_per_step=1)
    size = len(data.train_indices)
    visited = [data.stream().documents_of(step)[0] for step in range(3 * size)]
    epochs = [visited[start : start + size] for start in range(0, 3 * size, size)]
    assert all(sorted(epoch) == data.train_indices for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_the_steps_of_one_larger_rank(responses: ResponseSet, world_size: int) -> None:
    whole = module(responses, documents_per_step=2 * world_size).stream()
    parts = [module(responses).stream(rank, world_size) for rank in range(world_size)]
    for step in range(9):
        joined = [index for part in parts for index in part.documents_of(step)]
        assert joined == whole.documents_of(step)


def test_batches_are_packed_documents(responses: ResponseSet) -> None:
    stream = module(responses).stream()
    batch = stream.batch(4)
    rows = [responses.responses[index] for index in stream.documents_of(4)]
    assert batch.input_ids.tolist() == [token for row in rows for token in row.input_ids]
    assert batch.loss_mask.tolist() == [flag for row in rows for flag in row.loss_mask]
    assert batch.position_ids.tolist() == [i for row in rows for i in range(len(row))]
    assert batch.document_ids.tolist() == [d for d, row in enumerate(rows) for _ in range(len(row))]
    candidates = anchor_candidates(batch.loss_mask, batch.document_ids)
    assert candidates[batch.anchors].all()
    assert len(batch.anchors) >= 2
    assert batch.features is None
    assert batch.last_hidden is None


def test_cached_and_online_streams_agree(
    tmp_path: Path, responses: ResponseSet, target: TinyTarget
) -> None:
    store = cache_features(responses, target, tmp_path, "float16", 40)
    settings = {"seed": 0, "documents_per_step": 2, "anchors_per_document": 3}
    cached = ResponseDataModule(store, **settings).stream().batch(3)  # type: ignore[arg-type]
    online = module(responses).stream().batch(3)
    assert same(dataclasses.replace(cached, features=None, last_hidden=None), online)
    assert cached.features is not None
    assert cached.last_hidden is not None
    assert cached.features.shape == (len(cached.input_ids), target.feature_size)
    documents = zip(
        cached.input_ids.split(cached.document_ids.bincount().tolist()),
        cached.features.split(cached.document_ids.bincount().tolist()),
        strict=True,
    )
    for ids, features in documents:
        expected = target.forward(ids[None], num_logits=0).features[0]
        torch.testing.assert_close(features.float(), expected, rtol=1e-2, atol=1e-2)


def test_validation_is_held_back_and_fixed(responses: ResponseSet) -> None:
    train, validation = split_validation(2400, 32)
    assert len(validation) == 32
    assert not set(train) & set(validation)
    assert sorted(train + validation) == list(range(2400))
    one, other = module(responses, seed=0), module(responses, seed=5)
    assert one.validation_indices == other.validation_indices
    batches, again = list(one.val_dataloader()), list(other.val_dataloader())
    assert len(batches) == 1
    assert all(map(same, batches, again))
    stream = other.stream()
    seen = {index for step in range(50) for index in stream.documents_of(step)}
    assert seen == set(other.train_indices)
    assert not seen & set(other.validation_indices)


def test_one_document_cannot_be_split() -> None:
    with pytest.raises(ValueError, match=r"data.source.num_prompts"):
        split_validation(1, 32)
