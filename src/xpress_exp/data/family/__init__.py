"""The template families behind the generated prompts, by domain."""

from __future__ import annotations

from xpress_exp.data.family.bank import HELDOUT, TRAIN, Family
from xpress_exp.data.family.chat import FAMILIES as _CHAT
from xpress_exp.data.family.chat_write import FAMILIES as _CHAT_WRITE
from xpress_exp.data.family.code import FAMILIES as _CODE
from xpress_exp.data.family.code_snippet import FAMILIES as _CODE_SNIPPET
from xpress_exp.data.family.math import FAMILIES as _MATH
from xpress_exp.data.family.math_measure import FAMILIES as _MATH_MEASURE

DOMAINS = ("math", "code", "chat")
SPLITS = (TRAIN, HELDOUT)

FAMILIES: tuple[Family, ...] = (
    *_MATH,
    *_MATH_MEASURE,
    *_CODE,
    *_CODE_SNIPPET,
    *_CHAT,
    *_CHAT_WRITE,
)

__all__ = ["DOMAINS", "FAMILIES", "SPLITS", "Family"]
