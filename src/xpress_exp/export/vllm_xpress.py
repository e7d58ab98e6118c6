"""The xPress authors' serving layout: a dFlash checkpoint with the refiner under 'xpress_head.'."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from xpress_exp.export.backbone import drafter_config, read_drafter, read_target, top_and_nested
from xpress_exp.export.content import Content
from xpress_exp.export.layout import Layout, Names, causal_mix
from xpress_exp.run_dir import ArtefactError

PREFIX = "xpress_head."
# The names of the authors' training code.
NAMES = {
    "token_table": "w1.weight",
    "readout": "w2.weight",
    "down_hidden.weight": "down_h.weight",
    "down_global.weight": "down_g.weight",
    "in_proj.weight": "in_proj.weight",
    "mix": "mix.L",
    "mlp.gate_proj.weight": "mlp.gate_proj.weight",
    "mlp.up_proj.weight": "mlp.up_proj.weight",
    "mlp.down_proj.weight": "mlp.down_proj.weight",
}
# K of the authors' converter, for a run without passes of its own.
NUM_PASSES = 6


def refiner(rank: int) -> dict[str, Any]:
    """The head group of a published refiner: mixed with its diagonal, trained with the token before
    the anchor in slot 0."""
    own = {"mix": "inclusive", "mlp": "swiglu", "anchor_prev": "predecessor"}
    return {"name": "xpress", "rank": rank, **own}


def _write(content: Content, dtype: str) -> dict[str, Any]:
    return {
        **drafter_config(content, dtype),
        "architectures": ["Qwen3XPressModel"],
        "sample_from_anchor": False,
        "xpress_rank": content.head["rank"],
        "xpress_mlp_hidden": 2 * content.head["rank"],
        "xpress_block_size": content.drafter["block_size"],
        "xpress_num_passes": NUM_PASSES if content.num_passes is None else content.num_passes,
    }


def _read(config: Mapping[str, Any], file: Path) -> Content:
    fields = top_and_nested(config, file)
    fields.require("sample_from_anchor", False)
    drafter, rank = read_drafter(fields, "fill_in"), fields.integer("xpress_rank")
    fields.require("xpress_mlp_hidden", 2 * rank)
    slots = fields.integer("xpress_block_size", drafter["block_size"])
    if slots != drafter["block_size"]:
        raise ArtefactError(
            f"{file}: xpress_block_size={slots} but block_size={drafter['block_size']}; they must "
            "agree"
        )
    passes = fields.integer("xpress_num_passes", None)
    return Content(drafter, refiner(rank), read_target(fields), num_passes=passes)


def _names(_head: Mapping[str, Any]) -> Names:
    return {ours: PREFIX + theirs for ours, theirs in NAMES.items()}


def _extra(content: Content) -> dict[str, Tensor]:
    return {f"{PREFIX}mix.L": causal_mix(content)}


VLLM_XPRESS = Layout("vllm_xpress", _write, _read, _names, _extra)
