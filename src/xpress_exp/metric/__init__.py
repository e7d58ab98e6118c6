"""Pure functions from evaluation records to published numbers."""

from xpress_exp.metric.acceptance import (
    Acceptance,
    TauDifference,
    acceptance,
    tau_difference,
    tau_interval,
)
from xpress_exp.metric.bootstrap import Interval
from xpress_exp.metric.cost import (
    NO_HEAD,
    Cost,
    Curve,
    DraftProfile,
    Latencies,
    PassCost,
    Prediction,
    at_batch,
    conditional_acceptance,
    cost,
    expected_committed,
    predict,
    predictions,
    recommend,
)
from xpress_exp.metric.record import EvalRecord, read_records, to_line
from xpress_exp.metric.speed import MIN_PROMPTS, Speedup, speedup, tokens_per_second

__all__ = [
    "MIN_PROMPTS",
    "NO_HEAD",
    "Acceptance",
    "Cost",
    "Curve",
    "DraftProfile",
    "EvalRecord",
    "Interval",
    "Latencies",
    "PassCost",
    "Prediction",
    "Speedup",
    "TauDifference",
    "acceptance",
    "at_batch",
    "conditional_acceptance",
    "cost",
    "expected_committed",
    "predict",
    "predictions",
    "read_records",
    "recommend",
    "speedup",
    "tau_difference",
    "tau_interval",
    "to_line",
    "tokens_per_second",
]
