"""Refused command lines: exit code 2, one line with field, value, remedy; nothing started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

REFUSED = [
    # misspelt keys and options
    ("head.rnk=5", "head.rnk=5", "head.rank"),
    ("+head.rnk=5", "head.rnk", "head.rank"),
    ("decode.num_promts=5", "decode.num_promts=5", "decode.num_prompts"),
    ("objective.w_anchor.strat=1", "objective.w_anchor.strat=1", "objective.w_anchor.start"),
    ("sed=5", "sed=5", "seed"),
    ("rank=5", "rank=5", "head.rank"),
    ("heads=none", "heads=none", "did you mean head?"),
    ("head=xpres", "head=xpres", "options: gru, markov, none, xpress"),
    ("+experiment=dmo", "experiment=dmo", "did you mean demo?"),
    ("experiment=demo", "experiment=demo", "+experiment=demo"),
    ("~head.rank", "head.rank", "leave it in"),
    # misspelt values
    ("solver.noise=shard", "solver.noise=shard", "did you mean shared?"),
    ("solver.stop=fixpoint", "solver.stop=fixpoint", "fixed_point"),
    ("head=markov head.variant=gate", "head.variant=gate", "did you mean gated?"),
    ("head.mlp=swiglue", "head.mlp=swiglue", "did you mean swiglu?"),
    ("objective.w_anchor.schedule=lin", "objective.w_anchor.schedule=lin", "linear"),
    ("stages=[train,evl]", "stages=[train,evl]", "did you mean eval?"),
    ("drafter.slot_convention=fillin", "slot_convention=fillin", "did you mean fill_in?"),
    ("data.responses=regenrate", "data.responses=regenrate", "did you mean regenerate?"),
    ("target.dtype=fp32", "target.dtype=fp32", "float32"),
    # types and ranges
    ("head.rank=0", "head.rank=0", "integer >= 1"),
    ("head.rank=many", "head.rank=many", "integer >= 1"),
    ("head.rank=true", "head.rank=True", "integer >= 1"),
    ("seed=1.5", "seed=1.5", "integer >= 0"),
    ("drafter.block_size=1", "drafter.block_size=1", "integer >= 2"),
    ("solver.num_iterations=-1", "solver.num_iterations=-1", "integer >= 0"),
    ("solver.num_iterations=null", "solver.num_iterations=None", "use 0"),
    ("decode.temperatures=[0,-1]", "decode.temperatures=[0,-1]", "number >= 0"),
    ("decode.temperatures=[]", "decode.temperatures=[]", "not empty"),
    ("objective.w_anchor.start=1.2", "objective.w_anchor.start=1.2", "between 0 and 1"),
    ("optim.lr=0", "optim.lr=0", "> 0"),
    ("optim.lr=nan", "optim.lr=nan", "> 0"),
    ("optim.max_steps=-1", "optim.max_steps=-1", "integer >= 0"),
    ("decode.side_by_side=2", "decode.side_by_side=2", "true or false"),
    ("paths.runs=[a]", "paths.runs=[a]", "a text"),
    ("arm.name=a/b", "arm.name=a/b", "file name"),
    ("target=hf", "target.name_or_path", "target.name_or_path=<value>"),
    ("optim.lr=${oops}", "oops", "optim.lr"),
    ("head.rank=[1", "[1", "head.rank"),
    # combinations
    ("drafter.mask_token_id=2", "drafter.mask_token_id=2", "reserved id"),
    ("drafter.mask_token_id=0 target.stop_token_ids=[2,0]", "mask_token_id=0", "stops at [2, 0]"),
    ("drafter.mask_token_id=49152", "drafter.mask_token_id=49152", "id below"),
    ("drafter.mask_token_id=-1", "drafter.mask_token_id=-1", "integer >= 0"),
    ("drafter.target_layer_ids=[2,29]", "drafter.target_layer_ids=[2, 29]", "below the last"),
    ("drafter.target_layer_ids=[2,30]", "drafter.target_layer_ids=[2, 30]", "below the last"),
    ("drafter.target_layer_ids=[-1,2]", "drafter.target_layer_ids=[-1,2]", "integer >= 0"),
    ("drafter.target_layer_ids=[2,2]", "drafter.target_layer_ids=[2, 2]", "each once"),
    ("drafter.num_kv_heads=2", "drafter.num_kv_heads=2", "a divisor"),
    ("drafter.num_unused_slots=1", "drafter.num_unused_slots=1", "slot_convention=shift"),
    (
        "drafter.slot_convention=shift drafter.num_unused_slots=8",
        "drafter.num_unused_slots=8",
        "use fewer",
    ),
    ("head=gru head.pure_draft_prefix_len=7", "head.pure_draft_prefix_len=7", "smaller"),
    ("head.rank=1024", "head.token_init=target", "token_init=random"),
    ("decode.draft_temperature=0", "decode.draft_temperature=0", "add verifier=delta"),
    ("decode.draft_temperature=0.5", "decode.draft_temperature=0.5", "same or 0"),
    ("verifier=delta", "decode.draft_temperature=same", "decode.draft_temperature=0"),
    ("decode.top_k=0", "decode.top_k=0", "integer >= 1"),
    ("decode.top_p=1", "decode.top_p=1", "between 0 and 1"),
    (
        "verifier=gumbel_coupled solver.noise=fresh",
        "solver.noise=fresh",
        "use solver.noise=shared or last",
    ),
    ("decode.kernels=compiled solver.noise=fresh", "decode.kernels=compiled", "noise=shared"),
    ("decode.kernels=slow", "decode.kernels=slow", "fast, plain, compiled"),
    ("decode.batch=4 decode.kernels=plain", "decode.batch=4", "decode.batch=1"),
    ("data.source.split=heldout", "data.source.split=heldout", "split=train"),
    ("arm=none_released head=markov", "arm.name=none_released", "arm=custom"),
    (
        f"data=jsonl data.source.path={__file__} data.responses=shipped",
        "data.responses=shipped",
        "regenerate",
    ),
    # grids
    ("head=none,markov", "head=none,markov", "add -m"),
    ("-m +experiment=demo,tiny", "+experiment=demo,tiny", "one experiment after another"),
    ("head.rank=null", "head.rank=None", "needs a rank"),
    ("data.max_length=96", "data.max_length=96", "raise it"),
    ("trainer.devices=2", "trainer.devices=2", "trainer.devices=1"),
    ("drafter.init=/nowhere", "drafter.init=/nowhere", "checkpoint folder"),
    ("task=jsonl task.path=/nowhere", "task.path=/nowhere", "no such file"),
    ("stages=[export] export=zlab", "head.name=xpress: export=zlab holds only none", "export=hf"),
    ("stages=[export] export=z-lab", "export=z-lab is not an option of export", "zlab"),
    (
        "stages=[export] export=vllm_xpress head.mlp=silu",
        "head.mlp=silu",
        "export=vllm_xpress has a refiner of three matrices",
    ),
    (
        "stages=[export] export=domino head=gru drafter.mask_token_id=null",
        "drafter.mask_token_id=None",
        "no place for a learned mask embedding",
    ),
    ("export.dtype=float64", "export.dtype=float64", "float16, bfloat16, float32"),
    ("stages=[export] run=/nowhere", "run=/nowhere", "no finished training there"),
    ("run=/nowhere", "run=/nowhere", "only stages=[export] takes another run"),
    ("drafter.init_from=/nowhere", "drafter.init_from=/nowhere", "did you mean drafter.init?"),
    ("-m head.rank=8,0,16", "head.rank=0", "integer >= 1"),
    ("-m head.rank=interval(1,9)", "head.rank=interval(1,9)", "lists its values"),
]


@pytest.mark.parametrize(("line", "field_and_value", "remedy"), REFUSED, ids=lambda text: text)
def test_refused_in_one_line(
    line: str,
    field_and_value: str,
    remedy: str,
    command: Callable[..., int],
    calls: object,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    before = repr(calls)
    assert command(*line.split()) == 2
    told = capsys.readouterr()
    assert told.out == ""
    [said] = told.err.splitlines()
    assert said.startswith("error: ")
    assert field_and_value in said
    assert remedy in said
    assert repr(calls) == before
    assert list(tmp_path.iterdir()) == []


LEGAL = [
    "export=zlab",
    "stages=[prepare,train] export=zlab",
    "decode.draft_temperature=0 verifier=delta",
    "decode.draft_temperature=0 decode.temperatures=[0.0]",
    "verifier=delta decode.temperatures=[0]",
    "drafter.mask_token_id=null",
    "drafter.slot_convention=shift drafter.num_unused_slots=1",
    "solver=sequential solver.num_iterations=4",
    "verifier=gumbel_coupled decode.draft_temperature=0",
    "verifier=gumbel_coupled solver=sequential",
    "verifier=gumbel_coupled solver.noise=fresh decode.temperatures=[0]",
    "decode.top_k=20 decode.top_p=0.9",
    "optim.lr=1",
    "solver.num_iterations=0",
    "head.rank=1024 head.token_init=random",
    "arm=none_released optim.max_steps=50",
    "-m head=none,markov head.rank=8",
    "objective.decay_gamma=7",
]


@pytest.mark.parametrize("line", LEGAL)
def test_legal(line: str, command: Callable[..., int]) -> None:
    assert command(*line.split()) == 0


def test_every_problem_is_told(
    command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("head.rank=0", "decode.batch=many", "seed=-1") == 2
    lines = capsys.readouterr().err.splitlines()
    assert {line.split("=")[0] for line in lines} == {
        "error: head.rank",
        "error: decode.batch",
        "error: seed",
    }
