"""dFlash against a naive re-implementation, and against its own cached form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from xpress_exp.builders import DraftModel
from xpress_exp.drafter import DFlashDrafter, block_mask
from xpress_exp.target import TinyTarget
from xpress_exp.types import ModelDims, SlotConvention, SlotMap, TrainBatch

CLOSE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}


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
    trained_form: Callable[..., Tensor],
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
        for row, anchor in enumerate(batch.anchors.tolist()):
            ids = int(batch.input_ids[anchor])
            expected = naive_block(drafter, context_of(batch, anchor), ids)
            torch.testing.assert_close(found[row], expected, **CLOSE)


@pytest.mark.property("P11b")
@pytest.mark.parametrize("convention", ["fill_in", "shift"])
def test_training_equals_inference_with_caches(
    trained_form: Callable[..., Tensor],
    make_target: Callable[..., TinyTarget],
    make_model: Callable[..., DraftModel],
    batch: TrainBatch,
    convention: str,
) -> None:
    drafter = make_model(make_target(), convention=convention, randomize=0.3).drafter
    found = trained_form(drafter, batch)
    compared = 0
    with torch.inference_mode():
        for row, anchor in enumerate(batch.anchors.tolist()):
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


@pytest.mark.property("P11d")
def test_drafting_leaves_the_cache_alone(drafter: DFlashDrafter, batch: TrainBatch) -> None:
    assert batch.features is not None
    with torch.no_grad():
        cache = drafter.new_cache()
        drafter.extend(cache, batch.features[None, :5])
        first = drafter.draft(cache, torch.tensor([8]))
        drafter.draft(cache, torch.tensor([9]))
        assert cache.length == 5
        assert torch.equal(drafter.draft(cache, torch.tensor([8])), first)
        rows = drafter.new_cache(2)
        drafter.extend(rows, torch.stack([batch.features[:5], batch.features[5:10]]))
        both = drafter.draft(rows, torch.tensor([8, 12]))
    torch.testing.assert_close(both[0], first[0], **CLOSE)
    assert not torch.equal(both[0], both[1])


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
