"""dFlash against a naive re-implementation, its own cached form, and what a block must not see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from xpress_exp.builders import DraftModel
from xpress_exp.drafter import DFlashDrafter, block_mask
from xpress_exp.target import TinyTarget
from xpress_exp.types import ModelDims, SlotConvention, SlotMap, TrainBatch

CLOSE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}
DOCUMENTS = [([5, 9, 4], [13, 6, 6, 8, 20]), ([31, 7], [30, 29, 12, 40]), ([8], [9, 10, 11])]
ANCHORS = [0, 3, 5, 7, 8, 10, 13, 14, 17]  # every document, first and last tokens included


@pytest.fixture
def batch(make_target: Callable[..., TinyTarget], pack: Callable[..., TrainBatch]) -> TrainBatch:
    return pack(make_target(), DOCUMENTS, ANCHORS)


@pytest.fixture
def drafter(
    make_target: Callable[..., TinyTarget], make_model: Callable[..., DraftModel]
) -> DFlashDrafter:
    return make_model(make_target(), randomize=0.3).drafter


def trained_form(drafter: DFlashDrafter, batch: TrainBatch) -> Tensor:
    assert batch.features is not None
    with torch.no_grad():
        return drafter(
            batch.features,
            batch.position_ids,
            batch.input_ids[batch.anchors],
            batch.position_ids[batch.anchors],
            block_mask(batch.anchors, batch.document_ids, drafter.slots.block_size),
        )


def context_of(batch: TrainBatch, anchor: int) -> Tensor:
    """Features [a, F] that are known when the token at packed index `anchor` is the anchor."""
    assert batch.features is not None
    start = anchor - int(batch.position_ids[anchor])
    return batch.features[start:anchor]


def naive_block(drafter: DFlashDrafter, context: Tensor, anchor_id: int) -> Tensor:
    """Hidden states [P, H] of one block, one head and one query at a time, rotary by complex
    numbers."""
    weights = dict(drafter.named_parameters())

    def norm(states: Tensor, name: str) -> Tensor:
        scale = (states.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
        return states * scale * weights[f"{name}.weight"]

    def turn(vector: Tensor, position: int) -> Tensor:
        half = len(vector) // 2
        pairs = torch.complex(vector[:half], vector[half:])
        angles = position * drafter.rotary.inv_freq.double()
        turned = pairs * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([turned.real, turned.imag])

    size, start = drafter.slots.block_size, len(context)
    fused = norm(context @ weights["fc.weight"].T, "hidden_norm")
    mask = weights.get("mask_embedding", drafter.token_embedding[3])
    block = torch.stack([drafter.token_embedding[anchor_id], *[mask] * (size - 1)])
    for number in range(len(drafter.layers)):
        name = f"layers.{number}"
        inner = norm(block, f"{name}.input_layernorm")
        sources = torch.cat([fused, inner])
        attended = []
        for slot in range(size):
            heads = []
            for head in range(4):
                rows = slice(8 * head, 8 * head + 8)
                shared = slice(8 * (head // 2), 8 * (head // 2) + 8)  # two heads share a kv head
                query = inner[slot] @ weights[f"{name}.self_attn.q_proj.weight"][rows].T
                query = turn(norm(query, f"{name}.self_attn.q_norm"), start + slot)
                keys = sources @ weights[f"{name}.self_attn.k_proj.weight"][shared].T
                keys = norm(keys, f"{name}.self_attn.k_norm")
                keys = torch.stack([turn(key, place) for place, key in enumerate(keys)])
                values = sources @ weights[f"{name}.self_attn.v_proj.weight"][shared].T
                heads.append(torch.softmax(keys @ query / 8**0.5, 0) @ values)
            attended.append(torch.cat(heads) @ weights[f"{name}.self_attn.o_proj.weight"].T)
        block = block + torch.stack(attended)
        inner = norm(block, f"{name}.post_attention_layernorm")
        gate = inner @ weights[f"{name}.mlp.gate_proj.weight"].T
        up = inner @ weights[f"{name}.mlp.up_proj.weight"].T
        gated = gate * torch.sigmoid(gate) * up
        block = block + gated @ weights[f"{name}.mlp.down_proj.weight"].T
    return norm(block, "norm")


@pytest.mark.parametrize("mask_token_id", [3, None])
def test_equals_a_naive_implementation(
    make_target: Callable[..., TinyTarget],
    make_model: Callable[..., DraftModel],
    batch: TrainBatch,
    mask_token_id: int | None,
) -> None:
    target = make_target(num_heads=4)
    drafter = make_model(target, randomize=0.3, mask_token_id=mask_token_id).drafter
    assert 2 * len(target.rope_inv_freq) == 8
    found = trained_form(drafter, batch)
    with torch.no_grad():
        for row, anchor in enumerate(ANCHORS):
            ids = int(batch.input_ids[anchor])
            expected = naive_block(drafter, context_of(batch, anchor), ids)
            torch.testing.assert_close(found[row], expected, **CLOSE)


@pytest.mark.parametrize("convention", ["fill_in", "shift"])
def test_training_equals_inference_with_caches(
    make_target: Callable[..., TinyTarget],
    make_model: Callable[..., DraftModel],
    batch: TrainBatch,
    convention: str,
) -> None:
    drafter = make_model(make_target(), convention=convention, randomize=0.3).drafter
    found = trained_form(drafter, batch)
    compared = 0
    with torch.inference_mode():
        for row, anchor in enumerate(ANCHORS):
            context = context_of(batch, anchor)
            for chunks in ([len(context)], [1] * len(context), [1, len(context) - 1]):
                if min(chunks, default=0) < 1:
                    continue
                cache = drafter.new_cache()
                for part in context.split(chunks):
                    drafter.extend(cache, part[None])
                hidden = drafter.draft(cache, batch.input_ids[anchor][None])
                torch.testing.assert_close(hidden[0], found[row], **CLOSE)
                compared += 1
    assert compared > 12


def test_drafting_leaves_the_cache_alone(drafter: DFlashDrafter, batch: TrainBatch) -> None:
    assert batch.features is not None
    with torch.no_grad():
        cache = drafter.new_cache()
        drafter.extend(cache, batch.features[None, :5])
        first = drafter.draft(cache, torch.tensor([8]))
        drafter.draft(cache, torch.tensor([9]))
        assert cache.length == 5
        assert torch.equal(drafter.draft(cache, torch.tensor([8])), first)
        rows = drafter.new_cache()
        drafter.extend(rows, torch.stack([batch.features[:5], batch.features[5:10]]))
        both = drafter.draft(rows, torch.tensor([8, 12]))
    torch.testing.assert_close(both[0], first[0], **CLOSE)
    assert not torch.equal(both[0], both[1])


def changed_rows(drafter: DFlashDrafter, batch: TrainBatch, **changes: Tensor) -> list[int]:
    """Anchors whose block differs in any bit after the batch has changed."""
    before, after = trained_form(drafter, batch), trained_form(drafter, replace(batch, **changes))
    same = (before == after).flatten(1).all(1).tolist()
    return [anchor for anchor, equal in zip(ANCHORS, same, strict=True) if not equal]


def test_a_block_sees_only_earlier_features_of_its_document(
    drafter: DFlashDrafter, batch: TrainBatch
) -> None:
    assert batch.features is not None
    for place in range(len(batch.input_ids)):
        features = batch.features.clone()
        features[place] += 1.5
        same = batch.document_ids == batch.document_ids[place]
        expected = [anchor for anchor in ANCHORS if same[anchor] and place < anchor]
        assert changed_rows(drafter, batch, features=features) == expected, place


def test_a_block_sees_only_its_own_anchor_token(drafter: DFlashDrafter, batch: TrainBatch) -> None:
    for place in range(len(batch.input_ids)):
        tokens = batch.input_ids.clone()
        tokens[place] = 50
        expected = [place] if place in ANCHORS else []
        assert changed_rows(drafter, batch, input_ids=tokens) == expected, place


def test_appended_documents_change_nothing(
    make_target: Callable[..., TinyTarget],
    pack: Callable[..., TrainBatch],
    drafter: DFlashDrafter,
    batch: TrainBatch,
) -> None:
    longer = pack(make_target(), [*DOCUMENTS, ([7, 7], [7, 7, 7])], [*ANCHORS, 19])
    torch.testing.assert_close(
        trained_form(drafter, longer)[:-1], trained_form(drafter, batch), **CLOSE
    )


def test_slots_see_each_other_in_both_directions(
    drafter: DFlashDrafter, batch: TrainBatch
) -> None:
    with torch.no_grad():
        block = drafter._block_inputs(torch.tensor([9])).clone()
        context = drafter.context_kv(batch.features[None, :5], torch.arange(5)[None])  # type: ignore
        positions = torch.arange(5, 5 + drafter.slots.block_size)[None]
        before = drafter._run(block, positions, context, None)
        for slot in range(drafter.slots.block_size):
            perturbed = block.clone()
            perturbed[:, slot] += 1.0
            after = drafter._run(perturbed, positions, context, None)
            assert bool((before != after).any(-1).all()), slot


@pytest.mark.parametrize("learned", [False, True])
def test_mask_embedding(
    make_target: Callable[..., TinyTarget],
    make_model: Callable[..., DraftModel],
    batch: TrainBatch,
    learned: bool,
) -> None:
    target = make_target()
    drafter = make_model(target, mask_token_id=None if learned else 3).drafter
    inputs = drafter._block_inputs(torch.tensor([7]))[0]
    mask = target.embedding.mean(0) if learned else target.embedding[3]
    expected = torch.stack([target.embedding[7], *[mask] * 3])
    torch.testing.assert_close(inputs.detach(), expected, rtol=0, atol=1e-12)
    drafter(
        batch.features,
        batch.position_ids,
        batch.input_ids[batch.anchors],
        batch.position_ids[batch.anchors],
        block_mask(batch.anchors, batch.document_ids, 4),
    ).pow(2).sum().backward()
    assert ("mask_embedding" in drafter.state_dict()) == learned
    if learned:
        assert drafter.mask_embedding.grad is not None
        assert bool(drafter.mask_embedding.grad.any())
    assert drafter.token_embedding.grad is None and not drafter.token_embedding.requires_grad


def test_parameter_names_are_the_published_ones(
    make_target: Callable[..., TinyTarget], make_model: Callable[..., DraftModel]
) -> None:
    drafter = make_model(make_target(), num_layers=5).drafter
    layer = [f"self_attn.{part}_proj" for part in "qkvo"]
    layer += ["self_attn.q_norm", "self_attn.k_norm", "mlp.gate_proj", "mlp.up_proj"]
    layer += ["mlp.down_proj", "input_layernorm", "post_attention_layernorm"]
    names = {f"layers.{index}.{part}.weight" for index in range(5) for part in layer}
    names |= {"fc.weight", "hidden_norm.weight", "norm.weight"}
    assert set(drafter.state_dict()) == names
    assert len(names) == 58
    assert set(dict(drafter.named_parameters())) == names
    assert tuple(drafter.fc.weight.shape) == (32, 64)


def test_head_dim_must_fit_the_rotary_embedding() -> None:
    dims = ModelDims(8, 10, 10, SlotMap(SlotConvention.FILL_IN, 4))
    with pytest.raises(ValueError, match=r"drafter\.head_dim=8 .* set drafter\.head_dim=4"):
        DFlashDrafter(dims, 16, torch.zeros(10, 8), torch.ones(2), 1.0, 1, 8, 2, 1, 8, 3)
