"""Correction heads: none, markov, gru, xpress."""

from __future__ import annotations

from xpress_exp.head.contract import CorrectionHead, Dependence
from xpress_exp.head.gru import GRUHead
from xpress_exp.head.markov import MarkovHead
from xpress_exp.head.none import NoHead
from xpress_exp.head.xpress import XPressHead

__all__ = ["CorrectionHead", "Dependence", "GRUHead", "MarkovHead", "NoHead", "XPressHead"]
