"""What names a run and what names a decoding: exactly the settings that change them."""

from __future__ import annotations

import pytest

from xpress_exp.grid import compose_points
from xpress_exp.run_dir import fingerprint
from xpress_exp.schema import decode_science, run_name, run_path, science, unique_points

BASE = ["head=xpress"]
SAME_RUN = [
    "paths.runs=elsewhere", "paths.cache=c", "logger=none", "logger.project=p", "task.seed=3",
    "trainer.num_threads=1", "trainer.val_every_steps=7", "trainer.val_prompts=1",
    "trainer.checkpoint_every_steps=3", "trainer.accelerator=gpu", "solver=sequential",
    "solver.num_iterations=2", "decode.max_new_tokens=9", "decode.num_prompts=5", "stages=[train]",
    "decode.top_k=20", "decode.top_p=0.9",
    "data.features.shard_tokens=99", "data.max_broken_share=0.5", "objective.chunk_blocks=2",
    "objective.backward=autograd",
    "arm=xpress", "optim.max_grad_norm=1", "drafter.num_unused_slots=0", "export=zlab",
    "export.dtype=bfloat16",
]  # fmt: skip
OTHER_RUN = [
    "seed=1", "head.rank=32", "head.mix=inclusive", "head.token_std=0.5",
    "drafter.num_layers=1", "drafter.init=scratch",
    "optim.lr=1e-3", "optim.max_steps=121", "objective.w_consistency=0.2", "data.source.seed=1",
    "data.generation.batch_size=8", "data.max_length=99", "trainer.precision=bf16-mixed",
    "trainer.accumulate_grad_batches=2", "target.dtype=bfloat16", "head=markov",
]  # fmt: skip
SAME_DECODING = [
    "trainer.val_prompts=1", "decode.side_by_side=false", "decode.warmup_rounds=3",
    "decode.temperatures=[0,1]", "paths.runs=r", "seed=1", "head.rank=32",
]  # fmt: skip
OTHER_DECODING = [
    "solver.num_iterations=2", "solver.noise=fresh", "solver=parallel", "solver=sequential",
    "decode.max_new_tokens=9", "decode.num_prompts=5", "decode.temperatures=[0.0]", "task.seed=3",
    "verifier=delta", "decode.draft_temperature=0", "head=none", "decode.top_k=20",
    "decode.top_p=0.9", "verifier=gumbel_coupled",
]  # fmt: skip


def name(*overrides: str) -> str:
    [cfg, *_] = [c for c in compose_points([*BASE, *overrides]) if c.head.name != "none"]
    return run_name(cfg)


def decoding(*overrides: str) -> str:
    [cfg] = compose_points([*BASE, *overrides])
    return fingerprint(decode_science(cfg))


@pytest.mark.parametrize("override", SAME_RUN)
def test_same_run(override: str) -> None:
    assert name(override) == name()


@pytest.mark.parametrize("override", OTHER_RUN)
def test_another_run(override: str) -> None:
    assert name(override) != name()


@pytest.mark.parametrize("override", SAME_DECODING)
def test_same_decoding(override: str) -> None:
    assert decoding(override) == decoding()


@pytest.mark.parametrize("override", OTHER_DECODING)
def test_another_decoding(override: str) -> None:
    assert decoding(override) != decoding()


def test_an_option_that_came_later_renames_no_run_that_leaves_it_out() -> None:
    [cfg] = compose_points(["head=markov"])
    assert cfg.head.token_std is None and "token_std" not in science(cfg)["head"]
    [cfg] = compose_points(["head=markov", "head.token_std=0.5"])
    assert science(cfg)["head"]["token_std"] == 0.5


def test_a_number_is_the_same_science_however_typed() -> None:
    assert name("optim.lr=1") == name("optim.lr=1.0")
    greedy = ["verifier=delta", "decode.draft_temperature"]
    assert decoding(greedy[0], f"{greedy[1]}=0") == decoding(greedy[0], f"{greedy[1]}=0.0")


def test_options_of_passes_do_not_count_where_no_pass_is_made() -> None:
    base = decoding("solver.num_iterations=0")
    assert decoding("solver.num_iterations=0", "solver.noise=fresh") == base
    assert decoding("solver=sequential") != decoding("solver=parallel")
    alike = decoding("solver=sequential", "solver.num_iterations=3")
    assert alike == decoding("solver=sequential")


def test_a_drafter_without_head_decodes_alike_under_every_solver() -> None:
    points = compose_points(
        ["head=none", "solver=parallel,jacobi,sequential", "seed=0,1"], multirun=True
    )
    unique = unique_points(points)
    assert [cfg.seed for cfg in unique] == [0, 1]
    assert decode_science(unique[0])["solver"] == {"name": "parallel", "num_iterations": None}


def test_the_name_tells_arm_block_and_seed() -> None:
    [cfg] = compose_points(["arm=none_released", "drafter.block_size=6", "seed=4"])
    assert run_name(cfg) == f"none_released-b6-s4-{fingerprint(science(cfg))}"
    assert run_path(cfg).as_posix() == f"runs/{run_name(cfg)}"
    assert science(cfg)["optim"]["max_steps"] == 0
