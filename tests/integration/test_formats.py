"""Every format that can hold a model gives it back: same tokens, same rounds, same numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig

import xpress_exp
from xpress_exp.builders import DraftModel, build_target, load_model
from xpress_exp.decode import decode_speculative
from xpress_exp.export import Content, write_folder
from xpress_exp.formats import FORMATS, refusal
from xpress_exp.grid import compose_points
from xpress_exp.metric import acceptance, read_records
from xpress_exp.solver import JacobiSolver, SequentialSolver, Solver
from xpress_exp.stage.eval import evaluate
from xpress_exp.stage.export import export
from xpress_exp.stage.prepare import prepare
from xpress_exp.stage.train import train
from xpress_exp.target import TinyTarget
from xpress_exp.types import Proposal, SampleTrace

PROMPT = [5, 9, 4, 13, 6]
CASES = [
    (head, convention)
    for head in ("none", "markov", "gated", "rnn", "gru", "xpress")
    for convention in ("fill_in", "shift")
]


class Recorder:
    """A solver that keeps what it proposed, so that drafts count which the target rejects."""

    def __init__(self, solver: Solver) -> None:
        self.solver = solver
        self.drafts: list[list[int]] = []

    def propose(self, *arguments: Any) -> Proposal:
        made = self.solver.propose(*arguments)
        self.drafts.append(made.tokens[0].tolist())
        return made


def rounds(trace: SampleTrace) -> list[tuple[int, int, int]]:
    return [(item.drafted, item.accepted, item.committed) for item in trace.rounds]


def decode(target: TinyTarget, model: DraftModel, solver: Any) -> SampleTrace:
    return decode_speculative(
        target,
        model,
        solver,
        None,  # type: ignore[arg-type]  temperature 0 is always verified greedily
        PROMPT,
        temperature=0.0,
        draft_temperature=0.0,
        max_new_tokens=40,
        generator=None,
    )


@pytest.mark.parametrize(("head", "convention"), CASES)
def test_round_trip_through_every_format(
    make_target: Callable[..., TinyTarget],
    make_model: Callable[..., DraftModel],
    make_content: Callable[..., Content],
    tmp_path: Path,
    head: str,
    convention: str,
) -> None:
    # Logits nearly flat and codes strong: the head decides most drafts, the target few of them.
    target = make_target("qwen3", dtype=torch.float32, scale=1.0)
    model = make_model(target, head, convention, randomize=0.3)
    model.refold()
    content = make_content(target, model, head)
    recorder = Recorder(SequentialSolver())
    expected = decode(target, model, recorder)
    assert len({draft for block in recorder.drafts for draft in block}) > 1
    holding = [name for name in FORMATS if refusal(name, content.drafter, content.head) is None]
    assert "hf" in holding
    for name in holding:
        folder = tmp_path / name
        write_folder(folder, name, content, "float32", {}, "")
        loaded = Recorder(SequentialSolver())
        again = decode(target, xpress_exp.load(folder, target).model, loaded)
        assert again.tokens == expected.tokens, name
        assert loaded.drafts == recorder.drafts, name
        assert rounds(again) == rounds(expected), name


def test_domino_does_not_use_the_last_slot_of_shift(
    make_target: Callable[..., TinyTarget],
    make_model: Callable[..., DraftModel],
    make_content: Callable[..., Content],
    tmp_path: Path,
) -> None:
    target = make_target("qwen3", dtype=torch.float32, scale=1.0)
    model = make_model(target, "gru", "shift", randomize=0.3)
    content = make_content(target, model, "gru", num_unused_slots=1)
    write_folder(tmp_path, "domino", content, "float32", {}, "")
    loaded = xpress_exp.load(tmp_path, target).model
    assert loaded.slots.num_draft_tokens == 3
    state = model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in loaded.state_dict().items())


def test_a_reduced_vocabulary_survives(
    make_target: Callable[..., TinyTarget],
    make_model: Callable[..., DraftModel],
    make_content: Callable[..., Content],
    tmp_path: Path,
) -> None:
    target = make_target("qwen3", dtype=torch.float32, scale=1.0)
    ids = torch.tensor([2, 5, 6, 11, 30, 63])
    model = make_model(target, "markov", vocab_ids=ids, randomize=0.3)
    content, solver = make_content(target, model, "markov"), SequentialSolver()
    expected = decode(target, model, solver)
    for name in ("hf", "speculators"):
        write_folder(tmp_path / name, name, content, "float32", {}, "")
        loaded = xpress_exp.load(tmp_path / name, target).model
        assert loaded.vocab_ids is not None and loaded.vocab_ids.tolist() == ids.tolist()
        assert rounds(decode(target, loaded, solver)) == rounds(expected)


@pytest.fixture
def cfg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DictConfig:
    monkeypatch.chdir(tmp_path)
    # Steps so large that the head says something of its own after four of them.
    [point] = compose_points(["+experiment=tiny", "arm=xpress", "optim.head_lr=0.1"])
    prepare(point)
    train(point)
    return point


def test_a_run_is_exported_loaded_and_decodes_as_before(cfg: DictConfig) -> None:
    """Through the stage and run=<directory>, from a command line about another head."""
    target = build_target(cfg)
    trained, expected = load_model(cfg, target), Recorder(JacobiSolver(6))
    assert trained.head.readout.abs().max() > 0.1
    trace = decode(target, trained, expected)
    [run] = [path for path in Path("runs").iterdir() if path.name.startswith("xpress")]
    [other] = compose_points(
        ["stages=[export]", "export=vllm_xpress", f"run={run}", "head=gru", "export.dtype=float32"]
    )
    folder = export(other)
    assert folder == run / "export" / "vllm_xpress"
    for source in (run, folder):
        loaded = xpress_exp.load(source, target)
        found = Recorder(loaded.solver)
        assert rounds(decode(target, loaded.model, found)) == rounds(trace)
        assert found.drafts == expected.drafts
    card = (folder / "README.md").read_text()
    assert "# xpress drafter for tiny" in card and "was not evaluated" in card
    [measured] = evaluate([cfg])
    records = [r for r in read_records(measured / "builtin_heldout.jsonl") if r.temperature == 0]
    tau = acceptance([record.arm for record in records]).tau
    card = (export(other) / "README.md").read_text()
    assert f"| builtin_heldout | 0.0 | jacobi | 6 | 3 | {tau:.2f} |" in card


def test_a_run_with_another_head_is_refused_by_name(cfg: DictConfig) -> None:
    [run] = [path for path in Path("runs").iterdir() if path.name.startswith("xpress")]
    [other] = compose_points(["stages=[export]", "export=zlab", f"run={run}", "head=none"])
    with pytest.raises(ValueError, match=r"^head\.name=xpress: export=zlab holds only none"):
        export(other)
    assert not (run / "export").exists()
