"""DeepSpec's layout (Qwen3DSparkModel): Markov heads or none.

The class alone means next-token labels, with or without a head: slot j predicts a+j+1. The flag
sample_from_anchor=false means filled-in slots, as vLLM reads it and xPress' authors convert to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from xpress_exp.export.backbone import (
    convention_of,
    drafter_config,
    read_drafter,
    read_target,
    special_fields,
    top_and_nested,
)
from xpress_exp.export.content import Content
from xpress_exp.export.fields import Fields
from xpress_exp.export.layout import CONFIDENCE, Layout, Names, markov_names
from xpress_exp.run_dir import ArtefactError

PREFIX = "markov_head."
# Blocks per training step; the class demands the field and inference ignores it.
NUM_ANCHORS = 512


def _write(content: Content, dtype: str) -> dict[str, Any]:
    head = content.head
    own = {
        **special_fields(content),
        "num_anchors": NUM_ANCHORS,
        "sample_from_anchor": content.drafter["slot_convention"] == "shift",
        "markov_rank": head["rank"] if head["name"] == "markov" else 0,
        "enable_confidence_head": False,
        "confidence_head_with_markov": False,
    }
    if head["name"] == "markov":
        own["markov_head_type"] = head["variant"]
    common = drafter_config(content, dtype)
    return {
        **common,
        "architectures": ["Qwen3DSparkModel"],
        "tie_word_embeddings": False,
        **own,
        # Both places: engines read one or the other.
        "dflash_config": {**own, "block_size": common["block_size"]},
    }


def read_markov(fields: Fields, convention: str) -> dict[str, Any]:
    """The head group that markov_rank and markov_head_type describe."""
    rank = fields.integer("markov_rank", 0)
    if rank == 0:
        return {"name": "none"}
    fields.require("markov_head_type", "vanilla", "gated", "rnn")
    variant = fields.get("markov_head_type", "vanilla")
    if variant == "rnn" and convention == "fill_in":
        raise ArtefactError(
            f"{fields.file}: markov_head_type=rnn with sample_from_anchor=false is not supported; "
            "its state would start at the anchor's own slot"
        )
    return {"name": "markov", "rank": rank, "variant": variant}


def _read(config: Mapping[str, Any], file: Path) -> Content:
    fields = top_and_nested(config, file)
    convention = convention_of(fields, samples_from_anchor=True)
    head = read_markov(fields, convention)
    return Content(read_drafter(fields, convention), head, read_target(fields))


def head_names(head: Mapping[str, Any]) -> Names:
    """Names of the Markov head; none without one."""
    return markov_names(PREFIX, head["variant"]) if head["name"] == "markov" else {}


def _extra(content: Content) -> dict[str, Tensor]:
    """The class holds the target's matrices itself."""
    return dict(content.shared)


DEEPSPEC = Layout("deepspec", _write, _read, head_names, _extra, left_out=CONFIDENCE)
