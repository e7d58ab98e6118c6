"""Domino in SpecForge's layout: a dFlash checkpoint with projector_type domino and a GRU head."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xpress_exp.export.backbone import (
    drafter_config,
    read_drafter,
    read_target,
    special_fields,
    top_and_nested,
)
from xpress_exp.export.content import Content
from xpress_exp.export.layout import Layout, Names

NAMES = {
    "prefix_gru.weight_ih_l0": "prefix_gru.weight_ih_l0",
    "prefix_gru.weight_hh_l0": "prefix_gru.weight_hh_l0",
    "mid_proj.weight": "embed_proj.0.weight",
    "readout": "embed_proj.2.weight",
}


def _write(content: Content, dtype: str) -> dict[str, Any]:
    head = content.head
    own = {
        **special_fields(content),
        "projector_type": "domino",
        "emb_dim": head["rank"],
        "gru_hidden_dim": head["gru_hidden_size"],
        "pure_draft_prefix_len": head["pure_draft_prefix_len"],
        "shift_label": content.drafter["slot_convention"] == "shift",
    }
    return {
        **drafter_config(content, dtype),
        "architectures": ["DFlashDraftModel"],
        "emb_dim": head["rank"],
        "dflash_config": own,
    }


def _read(config: Mapping[str, Any], file: Path) -> Content:
    """shift_label means slots that predict the next token, of which the last is not used."""
    fields = top_and_nested(config, file)
    shifts = bool(fields.get("shift_label", False))
    drafter = read_drafter(fields, "shift" if shifts else "fill_in", int(shifts))
    head = {
        "name": "gru",
        "rank": fields.integer("emb_dim"),
        "gru_hidden_size": fields.integer("gru_hidden_dim"),
        "pure_draft_prefix_len": fields.integer("pure_draft_prefix_len", 0),
    }
    return Content(drafter, head, read_target(fields))


def _names(_head: Mapping[str, Any]) -> Names:
    return NAMES


DOMINO = Layout("domino", _write, _read, _names)
