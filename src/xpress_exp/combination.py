"""Settings that are legal alone and wrong together, as one table.

Every row names the field to change, when it is illegal, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from xpress_exp.formats import refusal
from xpress_exp.schema import COUPLED_VERIFIER, initial_folder, weights_file


@dataclass(frozen=True)
class Combination:
    """remedy may quote other fields, e.g. '{c.drafter.block_size}'."""

    field: str
    is_illegal: Callable[[Any], bool]
    remedy: str

    def problem(self, cfg: DictConfig) -> str | None:
        """One line, or None when the combination is legal. cfg's values have passed the rules."""
        if not self.is_illegal(cfg):
            return None
        value = OmegaConf.select(cfg, self.field)
        return f"{self.field}={value}: {self.remedy.format(c=cfg)}"


class HeldByFormat:
    """Export only into a format that has a place for the drafter and its head."""

    def problem(self, cfg: DictConfig) -> str | None:
        """One line, or None. A run that `run` names is judged when it is read."""
        if "export" not in cfg.stages or cfg.run is not None:
            return None
        return refusal(cfg.export.name, cfg.drafter, cfg.head)


def is_missing(path: str) -> bool:
    """Whether no file is there; found out before hours of training, not after."""
    return not Path(path).is_file()


def _lacks_initial_drafter(cfg: Any) -> bool:
    folder = initial_folder(cfg)
    return folder is not None and is_missing(str(weights_file(folder)))


def _mask_is(cfg: Any, ids: list[int | None]) -> bool:
    return cfg.drafter.mask_token_id is not None and cfg.drafter.mask_token_id in ids


def _num_drafts(cfg: Any) -> int:
    fills_in = cfg.drafter.slot_convention == "fill_in"
    return cfg.drafter.block_size - (1 if fills_in else cfg.drafter.num_unused_slots)


def _samples(cfg: Any) -> bool:
    return any(temperature > 0 for temperature in cfg.decode.temperatures)


COMBINATIONS: tuple[Combination | HeldByFormat, ...] = (
    Combination(
        "drafter.mask_token_id",
        lambda c: _mask_is(c, [c.target.pad_token_id, *(c.target.stop_token_ids or ())]),
        "the target pads with {c.target.pad_token_id} and stops at {c.target.stop_token_ids}; use "
        "a reserved id that no text contains, or null for a learned mask embedding",
    ),
    Combination(
        "drafter.mask_token_id",
        lambda c: (
            None not in (c.drafter.mask_token_id, c.target.vocab_size)
            and c.drafter.mask_token_id >= c.target.vocab_size
        ),
        "outside target.vocab_size={c.target.vocab_size}; use an id below it, or null for a "
        "learned mask embedding",
    ),
    Combination(
        "drafter.target_layer_ids",
        lambda c: (
            c.target.num_layers is not None
            and any(layer >= c.target.num_layers - 1 for layer in c.drafter.target_layer_ids)
        ),
        "target.num_layers={c.target.num_layers} counts from 0, and the last layer's output "
        "passes the final norm first; use layers below the last",
    ),
    Combination(
        "drafter.target_layer_ids",
        lambda c: len(set(c.drafter.target_layer_ids)) < len(c.drafter.target_layer_ids),
        "a layer is listed twice; list each once",
    ),
    Combination(
        "drafter.num_kv_heads",
        lambda c: c.drafter.num_heads % c.drafter.num_kv_heads != 0,
        "does not divide drafter.num_heads={c.drafter.num_heads}; use a divisor of it",
    ),
    Combination(
        "drafter.num_unused_slots",
        lambda c: c.drafter.slot_convention == "fill_in" and c.drafter.num_unused_slots > 0,
        "drafter.slot_convention=fill_in uses every slot; set 0, or slot_convention=shift",
    ),
    Combination(
        "drafter.num_unused_slots",
        lambda c: _num_drafts(c) < 1,
        "drafter.block_size={c.drafter.block_size} leaves no slot to draft with; use fewer",
    ),
    Combination(
        "drafter.init",
        lambda c: c.drafter.init == "released" and c.target.name != "smollm2",
        "the drafter that ships is smollm2's, not {c.target.name}'s; use drafter.init=scratch "
        "or a checkpoint folder",
    ),
    Combination(
        "head.rank",
        lambda c: c.head.name != "none" and "rank" in c.head and c.head.rank is None,
        "head={c.head.name} needs a rank; use an integer >= 1",
    ),
    Combination(
        "head.pure_draft_prefix_len",
        lambda c: c.head.get("pure_draft_prefix_len", -1) >= max(_num_drafts(c), 1),
        "leaves no token of drafter.block_size={c.drafter.block_size} to correct; use a smaller "
        "one",
    ),
    Combination(
        "head.token_init",
        lambda c: (
            c.head.get("token_init") == "target"
            and c.target.hidden_size is not None
            and c.head.rank is not None
            and c.head.rank > c.target.hidden_size
        ),
        "head.rank={c.head.rank} exceeds target.hidden_size={c.target.hidden_size}, so there is "
        "nothing to project from; use token_init=random or a smaller rank",
    ),
    Combination(
        "solver.num_iterations",
        lambda c: c.solver.name == "jacobi" and c.solver.num_iterations is None,
        "solver=jacobi needs a number of passes; use 0 (the base draft) or more",
    ),
    Combination(
        "arm.name",
        lambda c: not c.arm.trained and c.head.name != "none",
        "the released drafter has no head, but head={c.head.name} was chosen; use head=none, or "
        "arm=custom to train that head",
    ),
    Combination(
        "decode.draft_temperature",
        lambda c: (
            _samples(c) and c.decode.draft_temperature == 0 and c.verifier.name == "rejection"
        ),
        "greedy drafts are a point mass, which verifier=rejection cannot weigh; add "
        "verifier=delta, or use decode.draft_temperature=same",
    ),
    Combination(
        "decode.draft_temperature",
        lambda c: (
            _samples(c) and c.decode.draft_temperature == "same" and c.verifier.name == "delta"
        ),
        "verifier=delta is for greedy drafts and accepts sampled ones more seldom than need be; "
        "use decode.draft_temperature=0, or verifier=rejection",
    ),
    Combination(
        "solver.noise",
        lambda c: (
            c.verifier.name == COUPLED_VERIFIER and c.solver.get("noise") == "fresh" and _samples(c)
        ),
        "verifier=gumbel_coupled has one noise for every position; use solver.noise=shared or last",
    ),
    Combination(
        "drafter.init",
        _lacks_initial_drafter,
        "no model.safetensors there; give a run directory, a checkpoint folder, 'released' or "
        "'scratch'",
    ),
    Combination(
        "task.path",
        lambda c: "eval" in c.stages and c.task.get("path") and is_missing(c.task.path),
        'no such file; name a JSON-lines file of {{"turns": [...]}}',
    ),
    Combination(
        "data.source.path",
        lambda c: (
            c.data.name == "jsonl"
            and not {"prepare", "train"}.isdisjoint(c.stages)
            and is_missing(c.data.source.path)
        ),
        "no such file; name a JSON-lines file of conversations or prompts",
    ),
    HeldByFormat(),
    Combination(
        "run",
        lambda c: c.run is not None and list(c.stages) != ["export"],
        "only stages=[export] takes another run; leave run out for the other stages",
    ),
    Combination(
        "run",
        lambda c: (
            c.run is not None
            and list(c.stages) == ["export"]
            and is_missing(str(Path(c.run) / "train.done.json"))
        ),
        "no finished training there; give the directory of a run",
    ),
    Combination(
        "data.max_length",
        lambda c: c.data.max_length <= c.data.generation.max_new_tokens,
        "leaves no room for a prompt beside data.generation.max_new_tokens="
        "{c.data.generation.max_new_tokens}; raise it",
    ),
    Combination(
        "trainer.devices",
        lambda c: c.trainer.devices != 1,
        "training on several devices is not available yet; use trainer.devices=1",
    ),
    Combination(
        "decode.batch",
        lambda c: c.decode.batch > 1 and c.decode.kernels == "plain",
        "needs caches of rows with lengths of their own; use decode.kernels=fast or decode.batch=1",
    ),
    Combination(
        "decode.kernels",
        lambda c: c.decode.kernels == "compiled" and c.solver.get("noise") == "fresh",
        "a graph cannot hold a new draw for every pass of solver.noise=fresh; use "
        "solver.noise=shared or decode.kernels=fast",
    ),
    Combination(
        "data.responses",
        lambda c: (
            c.data.responses == "shipped"
            and not (c.data.name == "builtin" and c.target.name == "smollm2")
        ),
        "only smollm2's responses to data=builtin ship with the package; use "
        "data.responses=regenerate",
    ),
    Combination(
        "data.source.split",
        lambda c: c.data.name == "builtin" and c.data.source.split != "train",
        "held-out prompts are for evaluation only; use data.source.split=train",
    ),
)
