"""Training data: prompts, the target's own responses, its features, and batches of blocks."""

from xpress_exp.data.source import BuiltinPrompts, HfPrompts, JsonlPrompts

__all__ = ["BuiltinPrompts", "HfPrompts", "JsonlPrompts"]
