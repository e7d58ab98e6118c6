from omegaconf import DictConfig

from xpress_exp.grid import compose_points
from xpress_exp.stage.variant import eval_dir, flattened, recipe, variant_facts, varied_settings


def points(*overrides: str) -> list[DictConfig]:
    return compose_points(["+experiment=tiny", *overrides], multirun=True)


def test_flattened_keeps_lists_as_leaves() -> None:
    assert flattened({"a": {"b": 1, "c": [2, 3]}, "d": None}) == {
        "a.b": 1,
        "a.c": [2, 3],
        "d": None,
    }


def test_facts_say_what_is_decoded() -> None:
    facts = {f["arm"]: f for f in map(variant_facts, points("solver.num_iterations=3"))}
    assert (facts["xpress"]["solver"], facts["xpress"]["num_iterations"]) == ("jacobi", 3)
    assert (facts["none"]["solver"], facts["none"]["num_iterations"]) == ("parallel", None)
    assert facts["none"]["rank"] is None
    assert facts["xpress"]["task"] == "builtin_heldout"


def test_recipe_ignores_the_head_only() -> None:
    by_arm = {cfg.arm.name: recipe(cfg) for cfg in points()}
    assert by_arm["none"] == by_arm["markov"] == by_arm["xpress"]
    assert by_arm["none_released"] != by_arm["none"]
    assert recipe(points("optim.lr=0.5")[1]) != by_arm["none"]


def test_settings_with_columns_are_not_spelt_out() -> None:
    grid = points("arm=xpress", "seed=0,1", "solver.num_iterations=1,2", "head.rank=8")
    assert set(varied_settings(grid)) == {""}


def test_other_varied_settings_are_spelt_out() -> None:
    grid = points("arm=xpress", "optim.lr=0.1,0.2", "solver.noise=shared,fresh")
    assert len(set(map(eval_dir, grid))) == 4
    assert sorted(varied_settings(grid)) == [
        f"optim.lr={lr} solver.noise={noise}" for lr in (0.1, 0.2) for noise in ("fresh", "shared")
    ]


def test_options_that_only_some_solvers_have_do_not_split_a_curve() -> None:
    # K = 0 and sequential have no noise to set: they belong to the same line as K = 2.
    grid = points("arm=xpress", "solver=jacobi,sequential", "solver.num_iterations=0,2")
    assert set(varied_settings(grid)) == {""}


def test_training_lengths_are_told_apart() -> None:
    grid = points("arm=xpress", "optim.max_steps=2,3")
    assert varied_settings(grid) == ["optim.max_steps=2", "optim.max_steps=3"]


def test_a_filter_and_its_absence_are_told_apart() -> None:
    grid = points("arm=xpress", "decode.top_k=null,20")
    assert varied_settings(grid) == ["top_k=None", "top_k=20"]
