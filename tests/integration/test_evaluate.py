"""eval and report on untrained tiny runs: side by side, resumed, and one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from xpress_exp.grid import compose_points
from xpress_exp.metric import EvalRecord, read_records
from xpress_exp.run_dir import ArtefactError, RunDir
from xpress_exp.schema import run_path
from xpress_exp.stage.eval import evaluate
from xpress_exp.stage.report import report
from xpress_exp.stage.train import train
from xpress_exp.stage.variant import eval_dir

TASK = "builtin_heldout.jsonl"


@pytest.fixture
def cfgs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[DictConfig]:
    monkeypatch.chdir(tmp_path)
    return compose_points(
        ["+experiment=tiny", "arm=none,xpress", "optim.max_steps=0", "decode.max_new_tokens=6"]
    )


def tokens(path: Path) -> dict[tuple[str, float], tuple[int, ...]]:
    return {record.key: record.arm.tokens for record in read_records(path / TASK)}


def records(path: Path) -> list[EvalRecord]:
    return read_records(path / TASK)


def test_side_by_side_rounds_are_complete_paired_and_rotating(cfgs: list[DictConfig]) -> None:
    for cfg in cfgs:
        train(cfg)
    first, second = evaluate(cfgs)
    for path in (first, second):
        assert len(records(path)) == 3 * 2
        assert RunDir(path).done("eval") is not None
        assert all(r.first_divergence is None for r in records(path) if r.temperature == 0)
    for left, right in zip(records(first), records(second), strict=True):
        assert left.key == right.key
        assert left.ar == right.ar
        # Of participants (AR, first, second), the one at place (index - round) mod 3.
        assert (left.position, right.position) == ((1 - left.round) % 3, (2 - left.round) % 3)


def test_resuming_decodes_what_is_missing_with_the_same_draws(cfgs: list[DictConfig]) -> None:
    for cfg in cfgs:
        train(cfg)
    first, second = evaluate(cfgs)
    expected, kept = (tokens(first), tokens(second)), (first / TASK).read_text()
    for path in (first, second):
        (path / "eval.done.json").unlink()
    lines = (second / TASK).read_text().splitlines(keepends=True)
    (second / TASK).write_text("".join(lines[:2]))
    evaluate(cfgs)
    assert (first / TASK).read_text() == kept
    assert (tokens(first), tokens(second)) == expected
    assert (second / TASK).read_text().startswith("".join(lines[:2]))
    # Alone in its rounds now: beside the baseline there is one participant.
    assert {record.position for record in records(second)[2:]} <= {0, 1}


def test_batches_decode_the_same(cfgs: list[DictConfig]) -> None:
    for cfg in cfgs:
        train(cfg)

    def decoded(path: Path) -> list[Any]:
        # An arm's draws at T > 0 are keyed by its folder, which the batch renames.
        return [(r.key, r.ar.tokens, r.temperature or r.arm.tokens) for r in records(path)]

    alone = [decoded(path) for path in evaluate(cfgs)]
    folders = [eval_dir(cfg) for cfg in cfgs]
    for cfg in cfgs:
        cfg.decode.batch = 2  # of three prompts: one batch of two and one of one
    together = evaluate(cfgs)
    assert [decoded(path) for path in together] == alone
    assert set(together).isdisjoint(folders), "other times must not be taken for these"


def test_variants_alone_decode_the_same(cfgs: list[DictConfig]) -> None:
    for cfg in cfgs:
        train(cfg)
    together = [tokens(path) for path in evaluate(cfgs)]
    for cfg in cfgs:
        for file in eval_dir(cfg).iterdir():
            file.unlink()
        cfg.decode.side_by_side = False
    assert [tokens(path) for path in evaluate(cfgs)] == together


def test_coupled_arms_repeat_the_baseline_and_leave_other_rounds_alone(
    cfgs: list[DictConfig],
) -> None:
    for cfg in cfgs:
        train(cfg)
    sampled = [cfg.copy() for cfg in cfgs]
    alone = records(evaluate(sampled[1:])[0])
    for cfg in cfgs:
        cfg.verifier = {
            "name": "gumbel_coupled",
            "_target_": "xpress_exp.verifier.GumbelCoupledVerifier",
        }
    cfgs[1].decode.draft_temperature = 0
    together = evaluate([*sampled, *cfgs])
    for path in together[2:]:
        assert all(record.first_divergence is None for record in records(path))
    first, second = (records(path) for path in together[2:])
    assert [record.ar for record in first] == [record.ar for record in second]
    assert [r.ar.tokens for r in records(together[0])] == [r.ar.tokens for r in alone]
    assert [r.ar.tokens for r in first] != [r.ar.tokens for r in alone]


def test_a_truncated_law_has_rounds_and_a_baseline_of_its_own(cfgs: list[DictConfig]) -> None:
    train(cfgs[1])
    best = cfgs[1].copy()
    best.decode.top_k = 1  # nothing but the argmax is left at temperature 1
    whole, cut = (tokens(path) for path in evaluate([cfgs[1], best]))
    for (prompt, temperature), text in cut.items():
        assert text == cut[prompt, 0.0]
        assert temperature == 0 or text != whole[prompt, temperature]
    for record in records(eval_dir(best)):
        assert record.first_divergence is None


def test_an_untrained_run_is_named(cfgs: list[DictConfig]) -> None:
    with pytest.raises(ArtefactError, match=f"{run_path(cfgs[0])} has no finished training"):
        evaluate(cfgs)


def test_report_shows_measured_missing_and_failed_runs(
    cfgs: list[DictConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    train(cfgs[0])
    evaluate(cfgs[:1])
    folder = report(cfgs, "tiny", {run_path(cfgs[1]).name: "train: no memory"})
    assert folder == Path("experiments/tiny")
    text = (folder / "RESULTS.md").read_text()
    assert (
        f"{run_path(cfgs[1]).name}, builtin_heldout, temperature 0: failed: train: no mem" in text
    )
    assert len((folder / "results.csv").read_text().splitlines()) == 1 + 4
    assert {"tau.png", "accept_by_position.png"} <= {path.name for path in folder.iterdir()}
    assert "builtin_heldout, temperature 1" in capsys.readouterr().out
    report(cfgs, "tiny")
    assert "missing" in (folder / "RESULTS.md").read_text()
