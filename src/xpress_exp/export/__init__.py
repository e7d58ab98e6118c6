"""Checkpoints in and out, in the layouts that other projects read and write."""

from xpress_exp.export.agreement import check_target, check_wanted
from xpress_exp.export.card import model_card
from xpress_exp.export.content import Content, TargetFacts, target_facts
from xpress_exp.export.layer_ids import convert_layer_ids
from xpress_exp.export.reading import read_folder
from xpress_exp.export.skeleton import expected_shapes, make_drafter, make_head
from xpress_exp.export.weights import read_pickle, read_tensors
from xpress_exp.export.writing import write_folder

__all__ = [
    "Content",
    "TargetFacts",
    "check_target",
    "check_wanted",
    "convert_layer_ids",
    "expected_shapes",
    "make_drafter",
    "make_head",
    "model_card",
    "read_folder",
    "read_pickle",
    "read_tensors",
    "target_facts",
    "write_folder",
]
