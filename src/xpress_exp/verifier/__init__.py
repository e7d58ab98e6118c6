"""Verifiers: greedy, rejection, delta, gumbel_coupled."""

from __future__ import annotations

from xpress_exp.verifier.contract import Verifier
from xpress_exp.verifier.delta import DeltaVerifier
from xpress_exp.verifier.greedy import GreedyVerifier
from xpress_exp.verifier.gumbel_coupled import GumbelCoupledVerifier
from xpress_exp.verifier.rejection import RejectionVerifier

__all__ = [
    "DeltaVerifier",
    "GreedyVerifier",
    "GumbelCoupledVerifier",
    "RejectionVerifier",
    "Verifier",
]
