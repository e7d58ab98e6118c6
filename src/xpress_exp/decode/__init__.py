"""Decoding with a target alone or with a drafter, and measuring both side by side."""

from xpress_exp.decode.batch import Drafting, Request, decode_batch
from xpress_exp.decode.loop import decode_autoregressive, decode_speculative
from xpress_exp.decode.noise import PositionNoise
from xpress_exp.decode.sampling import random_stream, sample_token
from xpress_exp.decode.side_by_side import Arm, MeasuredPrompt, Measurement, measure

__all__ = [
    "Arm",
    "Drafting",
    "MeasuredPrompt",
    "Measurement",
    "PositionNoise",
    "Request",
    "decode_autoregressive",
    "decode_batch",
    "decode_speculative",
    "measure",
    "random_stream",
    "sample_token",
]
