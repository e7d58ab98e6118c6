"""Pure functions from evaluation records to published numbers."""

from xpress_exp.metric.acceptance import (
    Acceptance,
    TauDifference,
    acceptance,
    tau_difference,
    tau_interval,
)
from xpress_exp.metric.bootstrap import Interval
from xpress_exp.metric.cost import Cost, cost
from xpress_exp.metric.record import EvalRecord, read_records, to_line
from xpress_exp.metric.speed import MIN_PROMPTS, Speedup, speedup, tokens_per_second

__all__ = [
    "MIN_PROMPTS",
    "Acceptance",
    "Cost",
    "EvalRecord",
    "Interval",
    "Speedup",
    "TauDifference",
    "acceptance",
    "cost",
    "read_records",
    "speedup",
    "tau_difference",
    "tau_interval",
    "to_line",
    "tokens_per_second",
]
