"""The type and range of every value, as one table: dotted key -> rule."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xpress_exp.formats import FORMATS
from xpress_exp.schema import STAGES


@dataclass(frozen=True)
class Rule:
    """accepts decides; wants ends the sentence 'must be ...'; options are offered when misspelt."""

    accepts: Callable[[Any], bool]
    wants: str
    options: tuple[str, ...] = ()


def _is_number(value: Any) -> bool:
    is_numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_numeric and math.isfinite(value)


def integer(low: int) -> Rule:
    return Rule(
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= low,
        f"an integer >= {low}",
    )


def number(low: float, high: float = float("inf")) -> Rule:
    limits = f">= {low:g}" if high == float("inf") else f"between {low:g} and {high:g}"
    return Rule(lambda value: _is_number(value) and low <= value <= high, f"a number {limits}")


def above_zero(high: float = float("inf")) -> Rule:
    limit = "" if high == float("inf") else f" and <= {high:g}"
    return Rule(lambda value: _is_number(value) and 0 < value <= high, f"a number > 0{limit}")


def choice(*options: str) -> Rule:
    return Rule(lambda value: value in options, f"one of {', '.join(options)}", options)


def name_of_file() -> Rule:
    return Rule(
        lambda value: isinstance(value, str) and bool(re.fullmatch(r"[A-Za-z0-9_.+]+", value)),
        "a name of letters, digits, '_', '.', '+' (it becomes part of a file name)",
    )


def each(rule: Rule, min_length: int = 0) -> Rule:
    return Rule(
        lambda value: (
            isinstance(value, list)
            and len(value) >= min_length
            and all(rule.accepts(item) for item in value)
        ),
        f"a list{' (not empty)' if min_length else ''}, each item {rule.wants}",
        rule.options,
    )


def or_null(rule: Rule) -> Rule:
    return Rule(
        lambda value: value is None or rule.accepts(value), f"{rule.wants}, or null", rule.options
    )


ANYTHING = Rule(lambda _value: True, "anything")
TEXT = Rule(lambda value: isinstance(value, str), "a text")
DTYPE = choice("float32", "bfloat16", "float16", "float64")
TYPES = {
    bool: Rule(lambda value: isinstance(value, bool), "true or false"),
    int: integer(-(10**18)),
    float: number(-float("inf")),
    str: TEXT,
    list: Rule(lambda value: isinstance(value, list), "a list"),
}

# Keys without a row here must have the type of the value in the group's own file.
RULES: dict[str, Rule] = {
    "seed": integer(0),
    "stages": each(choice(*STAGES), min_length=1),
    "experiment": name_of_file(),
    "arm.name": name_of_file(),
    "target.name": name_of_file(),
    "target.dtype": DTYPE,
    "target.family": choice("llama", "qwen3"),
    "target.hidden_size": or_null(integer(1)),
    "target.vocab_size": or_null(integer(2)),
    "target.num_layers": or_null(integer(2)),
    "target.pad_token_id": or_null(integer(0)),
    "target.stop_token_ids": or_null(each(integer(0))),
    "drafter.num_layers": integer(1),
    "drafter.intermediate_size": integer(1),
    "drafter.num_heads": integer(1),
    "drafter.num_kv_heads": integer(1),
    "drafter.head_dim": integer(2),
    "drafter.block_size": integer(2),
    "drafter.slot_convention": choice("fill_in", "shift"),
    "drafter.num_unused_slots": integer(0),
    "drafter.target_layer_ids": each(integer(0), min_length=1),
    "drafter.mask_token_id": or_null(integer(0)),
    "drafter.draft_vocab": or_null(TEXT),
    "drafter.init": TEXT,
    "head.rank": or_null(integer(1)),
    "head.variant": choice("vanilla", "gated", "rnn"),
    "head.token_init": choice("target", "random"),
    "head.token_std": or_null(above_zero()),
    "head.gru_hidden_size": integer(1),
    "head.pure_draft_prefix_len": integer(0),
    "head.mix": choice("strict", "inclusive"),
    "head.mlp": choice("swiglu", "silu"),
    "head.init": choice("markov", "random"),
    "head.anchor_prev": choice("anchor", "predecessor"),
    "solver.num_iterations": or_null(integer(0)),
    "solver.noise": choice("shared", "fresh", "last"),
    "solver.seed": choice("sampled", "argmax"),
    "solver.stop": choice("fixed_point", "never"),
    "decode.temperatures": each(number(0), min_length=1),
    "decode.draft_temperature": Rule(
        lambda value: value == "same" or (_is_number(value) and value == 0), "same or 0"
    ),
    "decode.top_k": or_null(integer(1)),
    "decode.top_p": or_null(
        Rule(lambda value: _is_number(value) and 0 < value < 1, "a number between 0 and 1")
    ),
    "decode.max_new_tokens": integer(2),
    "decode.num_prompts": integer(1),
    "decode.batch": integer(1),
    "decode.kernels": choice("fast", "plain", "compiled"),
    "decode.warmup_rounds": integer(0),
    "objective.ce_weight": number(0),
    "objective.l1_weight": number(0),
    "objective.decay_gamma": or_null(above_zero()),
    "objective.w_anchor.start": number(0, 1),
    "objective.w_anchor.end": number(0, 1),
    "objective.w_anchor.schedule": choice("linear", "cosine", "constant"),
    "objective.w_consistency": number(0),
    "objective.consistency_passes": integer(1),
    "objective.chunk_blocks": integer(1),
    "objective.backward": choice("fused", "autograd"),
    "optim.lr": above_zero(),
    "optim.head_lr": above_zero(),
    "optim.betas": each(number(0, 1), min_length=2),
    "optim.weight_decay": number(0),
    "optim.warmup_share": number(0, 1),
    "optim.max_grad_norm": above_zero(),
    "optim.max_steps": integer(0),
    "optim.min_lr_share": number(0, 1),
    "data.name": name_of_file(),
    "data.source.split": TEXT,
    "data.source.num_prompts": or_null(integer(1)),
    "data.source.seed": integer(0),
    "data.generation.temperature": number(0),
    "data.generation.top_p": above_zero(1),
    "data.generation.max_new_tokens": integer(1),
    "data.generation.batch_size": integer(1),
    "data.generation.seed": integer(0),
    "data.responses": choice("shipped", "regenerate"),
    "data.max_length": integer(2),
    "data.max_broken_share": number(0, 1),
    "data.features.mode": choice("cached", "online"),
    "data.features.dtype": choice("float16", "bfloat16", "float32"),
    "data.features.shard_tokens": integer(1),
    "data.documents_per_step": integer(1),
    "data.anchors_per_document": integer(1),
    "task.name": name_of_file(),
    "task.seed": integer(0),
    "trainer.accelerator": choice("cpu", "gpu"),
    "trainer.devices": integer(1),
    "trainer.precision": choice("32-true", "bf16-mixed"),
    "trainer.accumulate_grad_batches": integer(1),
    "trainer.val_every_steps": integer(1),
    "trainer.val_prompts": integer(0),
    "trainer.val_max_new_tokens": integer(1),
    "trainer.checkpoint_every_steps": integer(1),
    "trainer.num_threads": or_null(integer(1)),
    "run": or_null(TEXT),
    "export.name": choice(*FORMATS),
    "export.dtype": choice("float16", "bfloat16", "float32"),
    "logger.mode": choice("offline", "online", "disabled"),
}


def rule_for(key: str, default: Any) -> Rule:
    """The table's row, or else: the type of the value in the group's own file."""
    is_computed = isinstance(default, str) and ("${" in default or default == "???")
    by_type = ANYTHING if default is None or is_computed else TYPES.get(type(default), ANYTHING)
    return RULES.get(key, by_type)
