"""The xPress authors' training checkpoints: one `.pt` beside the config.json of the dFlash it
started from. Its head is an xPress refiner or a vanilla Markov head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from xpress_exp.export.content import Content
from xpress_exp.export.layout import Layout
from xpress_exp.export.vllm_xpress import NAMES, refiner
from xpress_exp.export.weights import check_finite, read_pickle
from xpress_exp.export.zlab import ZLAB
from xpress_exp.run_dir import ArtefactError

PARTS = ("draft_state_dict", "refiner_state_dict")
MARKOV_NAMES = {"token_table": "w1.weight", "readout": "w2.weight"}
# A buffer: which entries of the mixer count.
LEFT_OUT = "mix.tril"
# Switches that change the function and leave no trace among the tensors, as in the release.
RELEASED_SWITCHES = {"no_residual": True, "input_mode": "concat", "input_relu": False}
HEAD = "refiner."


def read_training_pickle(content: Content, file: Path) -> tuple[Content, Layout, dict[str, Tensor]]:
    """content: what config.json tells of the drafter. Returns it with the head, the layout whose
    names the tensors have, and the tensors.

    Raises ArtefactError for another file or a head that was trained with other switches.
    """
    stored = read_pickle(file)
    lacking = [part for part in PARTS if not isinstance(stored.get(part), Mapping)]
    if lacking:
        raise ArtefactError(f"{file} lacks {' and '.join(lacking)}; it is no xPress checkpoint")
    _check_switches(vars(stored["args"]) if "args" in stored else {}, file)
    drafter, head = dict(stored[PARTS[0]]), dict(stored[PARTS[1]])
    head.pop(LEFT_OUT, None)
    if "w1.weight" not in head:
        raise ArtefactError(f"{file}: refiner_state_dict lacks w1.weight")
    rank = head["w1.weight"].shape[1]
    is_refiner = "mix.L" in head
    group = refiner(rank) if is_refiner else {"name": "markov", "rank": rank, "variant": "vanilla"}
    names = NAMES if is_refiner else MARKOV_NAMES
    layout = replace(
        ZLAB, head_names=lambda _head: {ours: HEAD + theirs for ours, theirs in names.items()}
    )
    tensors = {**drafter, **{HEAD + name: tensor for name, tensor in head.items()}}
    return replace(content, head=group), layout, check_finite(tensors, file)


def _check_switches(arguments: Mapping[str, Any], file: Path) -> None:
    for name, wanted in RELEASED_SWITCHES.items():
        if arguments.get(name, wanted) != wanted:
            raise ArtefactError(f"{file}: trained with {name}={arguments[name]}; only {wanted}")
