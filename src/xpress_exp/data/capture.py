"""Run the target over whole documents and check what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from xpress_exp.data.response import Response
from xpress_exp.target import TargetModel
from xpress_exp.types import TargetOutput, TrainBatch

# Padded tokens per forward; bounds the memory of a batch whatever the documents' lengths are.
BATCH_TOKENS = 4096


@dataclass(frozen=True)
class CapturedDocument:
    """input_ids int64 [T], loss_mask bool [T], features [T, F], last_hidden [T, H], on the CPU."""

    input_ids: Tensor
    loss_mask: Tensor
    features: Tensor
    last_hidden: Tensor


def capture_documents(
    documents: Sequence[Response],
    target: TargetModel,
    dtype: torch.dtype,
    batch_tokens: int = BATCH_TOKENS,
    on_documents: Callable[[int], object] = lambda _count: None,
) -> list[CapturedDocument]:
    """Features and final hidden states of each document, in the given order and dtype.

    Documents of similar length share a right-padded forward without a cache; `on_documents` is
    told how many each forward has finished. Raises ValueError
    naming document and layer when a feature is not finite, a whole layer is zero, or the target
    returns another number of tokens than it was given.
    """
    captured: dict[int, CapturedDocument] = {}
    for indices in _batches([len(document) for document in documents], batch_tokens):
        ids = [torch.from_numpy(documents[index].input_ids).long() for index in indices]
        output = _forward(ids, target)
        for row, index in enumerate(indices):
            document = documents[index]
            length = len(document)
            features = output.features[row, :length]
            last_hidden = output.last_hidden[row, :length]
            _check_layers(features, document.id, target.layer_ids, dtype)
            _check_finite(last_hidden, f"the final hidden state of document {document.id}", dtype)
            captured[index] = CapturedDocument(
                input_ids=ids[row],
                loss_mask=torch.from_numpy(document.loss_mask),
                features=features.to(dtype).cpu(),
                last_hidden=last_hidden.to(dtype).cpu(),
            )
        on_documents(len(indices))
    return [captured[index] for index in range(len(documents))]


def _batches(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Indices grouped by similar length; rows x longest stays within batch_tokens if it can."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: (lengths[index], index)):
        # Lengths ascend, so the newcomer is the longest of its batch.
        if batches and (len(batches[-1]) + 1) * lengths[index] <= batch_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def _forward(ids: Sequence[Tensor], target: TargetModel) -> TargetOutput:
    tokens = torch.nn.utils.rnn.pad_sequence(
        list(ids), batch_first=True, padding_value=target.pad_token_id or 0
    )
    lengths = torch.tensor([len(row) for row in ids], device=tokens.device)
    mask = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
    padded = None if bool(mask.all()) else mask.to(target.device)
    output = target.forward(tokens.to(target.device), attention_mask=padded, num_logits=0)
    for name, tensor in (("features", output.features), ("last_hidden", output.last_hidden)):
        if tensor.shape[:2] != tokens.shape:
            raise ValueError(
                f"target {target.name} returned {name} for {tuple(tensor.shape[:2])} tokens where "
                f"{tuple(tokens.shape)} were given; the target must not shorten or chunk its input"
            )
    return output


def _check_layers(
    features: Tensor, document_id: str, layer_ids: Sequence[int], dtype: torch.dtype
) -> None:
    """Each layer's block of columns must be finite and not all zero."""
    for layer_id, block in zip(layer_ids, features.chunk(len(layer_ids), -1), strict=True):
        what = f"the feature of layer {layer_id} of document {document_id}"
        _check_finite(block, what, dtype)
        if not bool(block.any()):
            raise ValueError(
                f"{what} is zero everywhere; choose other drafter.target_layer_ids "
                "(hybrid targets do not expose every layer)"
            )


def _check_finite(values: Tensor, what: str, dtype: torch.dtype) -> None:
    if not bool(values.isfinite().all()):
        raise ValueError(f"{what} is not finite; use a wider target.dtype (float32)")
    if not bool(values.to(dtype).isfinite().all()):
        largest = float(values.abs().max())
        raise ValueError(
            f"{what} reaches {largest:.3g}, too large for data.features.dtype="
            f"{str(dtype).removeprefix('torch.')}; set data.features.dtype=bfloat16 or float32"
        )


def capture_batch(batch: TrainBatch, target: TargetModel) -> tuple[Tensor, Tensor]:
    """Features [S, F] and final hidden states [S, H] of a packed batch, in the target's dtype.

    Each document is run on its own, so that no document sees another. Raises as
    `capture_documents`.
    """
    lengths = batch.document_ids.unique_consecutive(return_counts=True)[1].tolist()
    documents = list(batch.input_ids.split(lengths))
    output = _forward(documents, target)
    kept = [(row, slice(length)) for row, length in enumerate(lengths)]
    features = torch.cat([output.features[row, part] for row, part in kept])
    last_hidden = torch.cat([output.last_hidden[row, part] for row, part in kept])
    _check_layers(features, f"batch {batch.step}", target.layer_ids, features.dtype)
    return features, last_hidden
