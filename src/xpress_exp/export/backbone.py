"""The dFlash backbone in a Qwen3-style config: what all exchange layouts share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xpress_exp.export.content import Content, TargetFacts
from xpress_exp.export.fields import Fields
from xpress_exp.export.layer_ids import convert_layer_ids
from xpress_exp.run_dir import ArtefactError

RMS_NORM_EPS = 1e-6


def transformer_config(content: Content, dtype: str) -> dict[str, Any]:
    """Fields of the drafter's own layers. rope stands in both places: engines read one or the
    other, and the default of the place they read would be wrong silently."""
    drafter, target = content.drafter, content.target
    if "rope_theta" not in target.rope:
        raise ValueError(
            f"target={target.name} has rope_parameters {sorted(target.rope)}, and no layout has a "
            "place for more than one rope_theta; use export=hf"
        )
    return {
        "model_type": "qwen3",
        "hidden_size": target.hidden_size,
        "vocab_size": target.vocab_size,
        "intermediate_size": drafter["intermediate_size"],
        "num_hidden_layers": drafter["num_layers"],
        "num_attention_heads": drafter["num_heads"],
        "num_key_value_heads": drafter["num_kv_heads"],
        "head_dim": drafter["head_dim"],
        "layer_types": ["full_attention"] * drafter["num_layers"],
        "hidden_act": "silu",
        "rms_norm_eps": RMS_NORM_EPS,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "rope_theta": target.rope["rope_theta"],
        "rope_parameters": dict(target.rope),
        "torch_dtype": dtype,
    }


def drafter_config(content: Content, dtype: str) -> dict[str, Any]:
    """The layers and how they are used: fields of the published dFlash checkpoints."""
    drafter = content.drafter
    return {
        **transformer_config(content, dtype),
        "block_size": drafter["block_size"],
        "num_target_layers": content.target.num_layers,
        "num_speculative_tokens": content.slots.num_draft_tokens,
        "dflash_config": special_fields(content),
    }


def special_fields(content: Content) -> dict[str, Any]:
    """mask_token_id and target_layer_ids, counted as z-lab does."""
    ids = convert_layer_ids(content.drafter["target_layer_ids"], "output_of", "output_of")
    return {"mask_token_id": content.drafter["mask_token_id"], "target_layer_ids": ids}


def top_and_nested(config: Mapping[str, Any], file: Path) -> Fields:
    """The fields of config.json's top level, dflash_config and rope_parameters."""
    return Fields(
        file,
        {
            "": config,
            "dflash_config.": config.get("dflash_config"),
            "rope_parameters.": config.get("rope_parameters") or config.get("rope_scaling"),
        },
    )


def read_layers(fields: Fields) -> dict[str, Any]:
    """Keys of the drafter group that describe its layers; raises ArtefactError for layers that
    this package does not compute."""
    fields.require("hidden_act", "silu")
    fields.require("rms_norm_eps", RMS_NORM_EPS)
    fields.require("attention_bias", False)
    fields.require("use_sliding_window", False)
    fields.require("use_swa", False)
    fields.require("is_causal", False)
    fields.require("causal", False)
    for kind in fields.get("layer_types", []):
        if kind != "full_attention":
            raise ArtefactError(f"{fields.file}: layer_types has {kind}; only full_attention")
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    return {
        "num_layers": fields.integer("num_hidden_layers"),
        "intermediate_size": fields.integer("intermediate_size"),
        "num_heads": heads,
        "num_kv_heads": fields.integer("num_key_value_heads"),
        "head_dim": fields.integer("head_dim", hidden // heads),
    }


def read_drafter(fields: Fields, convention: str, num_unused_slots: int = 0) -> dict[str, Any]:
    """The drafter group of a Qwen3-style config in z-lab's counting of layers."""
    return {
        **read_layers(fields),
        "block_size": fields.integer("block_size"),
        "slot_convention": convention,
        "num_unused_slots": num_unused_slots,
        "target_layer_ids": layer_outputs(fields, "target_layer_ids", "output_of"),
        "mask_token_id": fields.integer("mask_token_id"),
        "draft_vocab": None,
    }


def layer_outputs(fields: Fields, key: str, counted: Any) -> list[int]:
    """Layer ids of a field as this package counts them."""
    try:
        return convert_layer_ids(fields.get(key), counted, "output_of")
    except (ValueError, TypeError) as error:
        raise ArtefactError(f"{fields.file}: {key}: {error}") from error


def read_target(fields: Fields) -> TargetFacts:
    """What a Qwen3-style config tells of its target."""
    theta = fields.get("rope_theta", None)
    return TargetFacts(
        hidden_size=fields.integer("hidden_size"),
        vocab_size=fields.integer("vocab_size"),
        num_layers=fields.integer("num_target_layers", None),
        rope={} if theta is None else {"rope_theta": theta},
    )


def convention_of(fields: Fields, samples_from_anchor: bool) -> str:
    """Slot convention from the class (samples_from_anchor: what it means without a flag) and the
    flag sample_from_anchor."""
    return "shift" if fields.get("sample_from_anchor", samples_from_anchor) else "fill_in"
