"""speculators' layout: DFlashSpeculator, DSparkSpeculator (Markov heads), XPressSpeculator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xpress_exp.export.backbone import (
    convention_of,
    layer_outputs,
    read_layers,
    read_target,
    transformer_config,
)
from xpress_exp.export.content import Content
from xpress_exp.export.deepspec import head_names as markov_head_names
from xpress_exp.export.deepspec import read_markov
from xpress_exp.export.fields import Fields
from xpress_exp.export.layer_ids import convert_layer_ids
from xpress_exp.export.layout import CONFIDENCE, Layout, Names, causal_mix
from xpress_exp.export.vllm_xpress import NUM_PASSES, refiner
from xpress_exp.run_dir import ArtefactError

KINDS = {
    "none": ("dflash", "DFlashSpeculator"),
    "markov": ("dspark", "DSparkSpeculator"),
    "xpress": ("xpress", "XPressSpeculator"),
}
REFINER = "refiner_head."
NAMES = {
    "token_table": "token_embed.weight",
    "readout": "readout.weight",
    "down_hidden.weight": "down_h.weight",
    "down_global.weight": "down_g.weight",
    "in_proj.weight": "in_proj.weight",
    "mix": "mix_l",
    "mlp.gate_proj.weight": "mlp_gate.weight",
    "mlp.up_proj.weight": "mlp_up.weight",
    "mlp.down_proj.weight": "mlp_down.weight",
}
D2T, T2D = "d2t", "t2d"


def _write(content: Content, dtype: str) -> dict[str, Any]:
    drafter, target, head = content.drafter, content.target, content.head
    kind, architecture = KINDS[head["name"]]
    layers = transformer_config(content, dtype)
    ids = content.vocab_ids
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": content.slots.num_draft_tokens,
        "verifier_accept_k": 1,
    }
    return {
        "architectures": [architecture],
        "speculators_model_type": kind,
        "torch_dtype": layers.pop("torch_dtype"),
        "transformer_layer_config": layers,
        "draft_vocab_size": target.vocab_size if ids is None else len(ids),
        "block_size": drafter["block_size"],
        "aux_hidden_state_layer_ids": convert_layer_ids(
            drafter["target_layer_ids"], "output_of", "hidden_state"
        ),
        "mask_token_id": drafter["mask_token_id"],
        "sample_from_anchor": drafter["slot_convention"] == "shift",
        **_head_fields(content),
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {
                "name_or_path": target.name_or_path,
                "architectures": list(target.architectures),
            },
        },
    }


def _head_fields(content: Content) -> dict[str, Any]:
    head = content.head
    if head["name"] == "markov":
        return {
            "markov_rank": head["rank"],
            "markov_head_type": head["variant"],
            "enable_confidence_head": False,
            "confidence_head_with_markov": False,
        }
    if head["name"] == "xpress":
        passes = NUM_PASSES if content.num_passes is None else content.num_passes
        return {"xpress_rank": head["rank"], "xpress_mlp_ratio": 2, "num_jacobi_passes": passes}
    return {}


def _read(config: Mapping[str, Any], file: Path) -> Content:
    layers = config.get("transformer_layer_config") or {}
    inner = Fields(file, {"": layers, "rope_parameters.": layers.get("rope_parameters")})
    fields = Fields(file, {"": config})
    kind = fields.get("speculators_model_type")
    if kind not in [known for known, _ in KINDS.values()]:
        raise ArtefactError(f"{file}: speculators_model_type={kind} is not supported")
    convention = convention_of(fields, samples_from_anchor=kind == "dspark")
    drafter = {
        **read_layers(inner),
        "block_size": fields.integer("block_size"),
        "slot_convention": convention,
        "num_unused_slots": 0,
        "target_layer_ids": layer_outputs(fields, "aux_hidden_state_layer_ids", "hidden_state"),
        "mask_token_id": fields.integer("mask_token_id"),
        "draft_vocab": None,
    }
    return Content(
        drafter,
        _read_head(kind, fields, convention),
        read_target(inner),
        num_passes=fields.integer("num_jacobi_passes", None),
    )


def _read_head(kind: str, fields: Fields, convention: str) -> dict[str, Any]:
    """The class's own defaults stand where a field is absent."""
    if kind == "dflash":
        return {"name": "none"}
    if kind == "dspark":
        return read_markov(fields, convention)
    fields.require("xpress_mlp_ratio", 2)
    return refiner(fields.integer("xpress_rank"))


def _names(head: Mapping[str, Any]) -> Names:
    if head["name"] != "xpress":
        return markov_head_names(head)
    return {ours: REFINER + theirs for ours, theirs in NAMES.items()}


def _extra(content: Content) -> dict[str, Tensor]:
    """The mixer as this layout reads it, and what a reduced vocabulary needs."""
    mixer = {} if content.head["name"] != "xpress" else {f"{REFINER}mix_l": causal_mix(content)}
    ids = content.vocab_ids
    if ids is None:
        return mixer
    ids = ids.cpu()
    is_drafted = torch.zeros(content.target.vocab_size or 0, dtype=torch.bool)
    is_drafted[ids] = True
    offsets = ids - torch.arange(len(ids))
    return {
        **mixer,
        T2D: is_drafted,
        D2T: offsets,
        "lm_head.weight": content.shared["lm_head.weight"][ids],
    }


def take_vocabulary(
    content: Content, config: Mapping[str, Any], tensors: dict[str, Tensor], file: Path
) -> Content:
    """The content with the reduced vocabulary of d2t and t2d, which are removed from `tensors`."""
    offsets, is_drafted = tensors.pop(D2T, None), tensors.pop(T2D, None)
    ids = None if offsets is None else offsets.long() + torch.arange(len(offsets))
    size = content.target.vocab_size if ids is None else len(ids)
    if config.get("draft_vocab_size", size) != size:
        raise ArtefactError(
            f"{file}: draft_vocab_size={config['draft_vocab_size']}, but the weights have {size}"
        )
    if ids is not None and is_drafted is not None:
        listed = is_drafted.nonzero()[:, 0]
        if not torch.equal(listed, ids):
            raise ArtefactError(f"{file}: t2d and d2t list different tokens")
    return replace(content, vocab_ids=ids)


SPECULATORS = Layout("speculators", _write, _read, _names, _extra, left_out=CONFIDENCE)
