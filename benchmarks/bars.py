"""Which script measures which figure, and the bar of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """A limit that a figure should keep: `at_most` or, when False, at least."""

    limit: float
    at_most: bool

    def met(self, value: float) -> bool:
        return value <= self.limit if self.at_most else value >= self.limit

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.limit:g}"


def at_most(limit: float) -> Bar:
    return Bar(limit, True)


def at_least(limit: float) -> Bar:
    return Bar(limit, False)


# Script -> its figures -> bar; None is reported only. A figure that is named here must be there.
FIGURES: dict[str, dict[str, Bar | None]] = {
    "start": {"cli_help_seconds": None, "end_to_end_speedup_demo_xpress": None},
    "decode": {
        "round_overhead": at_most(1.08),
        "verify8_over_plain_single": at_most(1.15),
        "verify16_over_plain_single": at_most(1.45),
        "single_token_rate_over_transformers_generate": at_least(1.2),
    },
    "refine": {
        "xpress_k4_over_markov_sequential": at_most(0.65),
        "xpress_k6_over_markov_sequential": at_most(0.95),
    },
    "batch": {"batch8_rate_over_plain_batch1": at_least(2.5)},
    "objective": {
        "objective_peak_over_naive": at_most(0.25),
        "objective_time_over_naive": at_most(1.1),
    },
    "train_step": {
        "train_rate_over_speculators_dflash_32": at_least(1.0),
        "train_rate_over_speculators_dflash_64": at_least(1.0),
        "train_rate_over_speculators_xpress_32": at_least(1.15),
        "train_rate_over_speculators_xpress_64": at_least(1.15),
        "train_peak_over_speculators_xpress_64": at_most(0.5),
    },
    "floor": {
        "train_step_over_floor_xpress_32": at_most(1.35),
        "train_step_over_floor_xpress_64": at_most(1.35),
    },
    "data": {
        "regenerate_rate_over_generate": at_least(3.0),
        "regenerate_rows_unlike_generate": at_most(0),
        "capture_rate_over_forward": None,
        "bytes_per_cached_token": None,
        "restart_repeated_work": at_most(0),
    },
    "cost_model": {"cost_model_error": at_most(0.10)},
    # And the figures of EXPONENTS.
    "scaling": {"objective_bytes_per_slot_and_token": at_most(0.01)},
}

# What grows with what: the power of the work's largest term in that size. Between them no product
# of two sizes but slots x rank, slots x width and one chunk of slots x vocabulary is held.
TRAINING_AXES = ("anchors", "block", "vocabulary", "sequence", "rank", "passes")
DECODING_AXES = ("block", "vocabulary", "rank", "passes")
EXPONENTS: dict[str, dict[str, float]] = {
    "step_time": dict.fromkeys(TRAINING_AXES, 1.0),
    "step_memory": dict.fromkeys(TRAINING_AXES, 1.0),
    # Without the drafter nothing reads the sequence.
    "objective_time": {axis: 1.0 for axis in TRAINING_AXES if axis != "sequence"},
    "objective_memory": {axis: 1.0 for axis in TRAINING_AXES if axis != "sequence"},
    "refine_time": dict.fromkeys(DECODING_AXES, 1.0),
}
PREFIX = "exponent_"
# A fit through few sizes, of which the smallest pay fixed costs, is no exact power.
SLACK = 0.1


def exponent_bar(key: str) -> Bar | None:
    """The bar of `exponent_<what>_<axis>`, None for any other name."""
    what, _, axis = key.removeprefix(PREFIX).rpartition("_")
    power = EXPONENTS.get(what, {}).get(axis) if key.startswith(PREFIX) else None
    return None if power is None else at_most(power + SLACK)
