"""The frozen target LLM and everything that touches Transformers."""

from transformers.utils import logging as _transformers_logging

from xpress_exp.target.generate import Generated, generate_batch
from xpress_exp.target.hf import HFTarget
from xpress_exp.target.layer_ids import check_layer_ids, default_layer_ids, hidden_state_index
from xpress_exp.target.model import TargetCache, TargetModel
from xpress_exp.target.packaged import PackagedTarget
from xpress_exp.target.tiny import TinyTarget, tiny_target

__all__ = [
    "Generated",
    "HFTarget",
    "PackagedTarget",
    "TargetCache",
    "TargetModel",
    "TinyTarget",
    "check_layer_ids",
    "default_layer_ids",
    "generate_batch",
    "hidden_state_index",
    "tiny_target",
]

# Loading takes a second; bars of it only bury our own progress lines.
_transformers_logging.disable_progress_bar()
