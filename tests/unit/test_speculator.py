"""xpress_exp.load(...).generate against Transformers' own generate."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, StoppingCriteriaList

import xpress_exp
from xpress_exp.builders import DraftModel
from xpress_exp.decode import decode_speculative
from xpress_exp.export import Content, write_folder
from xpress_exp.solver import JacobiSolver, ParallelSolver, SequentialSolver
from xpress_exp.speculator import GenerateOutput, Speculator
from xpress_exp.target import TinyTarget
from xpress_exp.verifier import RejectionVerifier

IDS = torch.tensor([[5, 9, 4, 13, 6]])


@pytest.fixture
def target(make_target: Callable[..., TinyTarget]) -> TinyTarget:
    return make_target("qwen3", dtype=torch.float32)


@pytest.fixture
def folder(
    target: TinyTarget,
    make_model: Callable[..., DraftModel],
    make_content: Callable[..., Content],
    tmp_path: Path,
) -> Path:
    model = make_model(target, "markov", randomize=0.3)
    content = make_content(target, model, "markov")
    write_folder(tmp_path / "made", "hf", content, "float32", {}, "")
    return tmp_path / "made"


@pytest.fixture
def loaded(folder: Path, target: TinyTarget) -> Speculator:
    return xpress_exp.load(folder, target)


def plain(target: TinyTarget, **settings: Any) -> torch.Tensor:
    """Transformers' own."""
    return target._model.generate(IDS, do_sample=False, **settings)


@pytest.mark.parametrize(
    "settings",
    [{"max_new_tokens": 20}, {"max_length": 12}, {"max_new_tokens": 1}, {}],
    ids=str,
)
def test_greedy_output_is_that_of_transformers(
    loaded: Speculator, target: TinyTarget, settings: dict[str, int]
) -> None:
    found = loaded.generate(IDS, **settings)
    assert isinstance(found, torch.Tensor) and found.dtype == torch.int64
    assert torch.equal(found, plain(target, **settings))


def test_the_call_wins_over_the_config_and_that_over_the_model(
    loaded: Speculator, target: TinyTarget
) -> None:
    config = GenerationConfig(max_new_tokens=7)
    assert torch.equal(loaded.generate(IDS, config), plain(target, max_new_tokens=7))
    again = loaded.generate(IDS, generation_config=config, max_new_tokens=3)
    assert torch.equal(again, plain(target, max_new_tokens=3))


def test_eos_token_id_ends_the_output(loaded: Speculator, target: TinyTarget) -> None:
    text = plain(target, max_new_tokens=20)[0, 5:].tolist()
    stop = text[6]
    for given in (stop, [stop, 1]):
        found = loaded.generate(IDS, max_new_tokens=20, eos_token_id=given)
        assert found[0, 5:].tolist() == text[: text.index(stop) + 1]
    assert target.stop_token_ids == {2}  # a call changes nothing for the next


def test_stopping_criteria_are_asked_after_every_token(
    loaded: Speculator, target: TinyTarget
) -> None:
    """Even inside an accepted block, so that the output is that of plain decoding."""
    text = plain(target, max_new_tokens=20)[0]
    seen: list[int] = []

    def stop(ids: torch.Tensor, _scores: Any, **_rest: Any) -> torch.Tensor:
        seen.append(ids.shape[1])
        return torch.tensor([ids.shape[1] == 9])

    rules = StoppingCriteriaList([stop])  # type: ignore[list-item]
    found = loaded.generate(IDS, max_new_tokens=20, stopping_criteria=rules)
    assert torch.equal(found[0], text[:9])
    assert seen == [6, 7, 8, 9]


def test_the_streamer_gets_the_prompt_and_every_token(loaded: Speculator) -> None:
    class Streamer:
        def __init__(self) -> None:
            self.got: list[list[int]] = []
            self.ended = 0

        def put(self, value: torch.Tensor) -> None:
            assert not self.ended
            self.got.append(value.reshape(-1).tolist())

        def end(self) -> None:
            self.ended += 1

    streamer = Streamer()
    found = loaded.generate(IDS, max_new_tokens=9, streamer=streamer)
    assert streamer.got[0] == IDS[0].tolist()
    assert [token for [token] in streamer.got[1:]] == found[0, 5:].tolist()
    assert streamer.ended == 1


def test_statistics_are_those_of_the_decode_loop(loaded: Speculator, target: TinyTarget) -> None:
    found = loaded.generate(IDS, max_new_tokens=24, return_dict_in_generate=True)
    assert isinstance(found, GenerateOutput)
    trace = decode_speculative(
        target,
        loaded.model,
        loaded.solver,
        RejectionVerifier(),
        IDS[0].tolist(),
        temperature=0.0,
        draft_temperature=0.0,
        max_new_tokens=24,
        generator=None,
    )
    assert found.sequences[0, 5:].tolist() == found["sequences"][0, 5:].tolist()
    assert tuple(found.sequences[0, 5:].tolist()) == trace.tokens
    assert found.num_rounds == len(trace.rounds)
    assert found.tau == pytest.approx((len(trace.tokens) - 1) / len(trace.rounds))


def test_sampling_is_the_callers_randomness(loaded: Speculator) -> None:
    drawn = []
    for seed in (0, 0, 1):
        generator = torch.Generator().manual_seed(seed)
        drawn.append(
            loaded.generate(IDS, max_new_tokens=16, do_sample=True, generator=generator).tolist()
        )
    assert drawn[0] == drawn[1] != drawn[2]
    torch.manual_seed(3)
    first = loaded.generate(IDS, max_new_tokens=16, do_sample=True)
    torch.manual_seed(3)
    assert torch.equal(first, loaded.generate(IDS, max_new_tokens=16, do_sample=True))


def test_filters_reach_the_law(loaded: Speculator, target: TinyTarget) -> None:
    """top_k=1 and a tiny top_p leave one token: the greedy one, at any temperature."""
    text = plain(target, max_new_tokens=16)
    for one in ({"top_k": 1}, {"top_p": 1e-6}):
        found = loaded.generate(IDS, max_new_tokens=16, do_sample=True, temperature=5.0, **one)
        assert torch.equal(found, text)
    generators = [torch.Generator().manual_seed(4) for _ in range(2)]
    settings = {"max_new_tokens": 16, "do_sample": True, "temperature": 5.0}
    wide = loaded.generate(IDS, generator=generators[0], **settings)
    off = loaded.generate(IDS, generator=generators[1], top_k=0, top_p=1.0, **settings)
    assert torch.equal(wide, off) and not torch.equal(wide, text)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_beams": 4}, "num_beams=4 is not supported"),
        ({"repetition_penalty": 1.2}, "repetition_penalty=1.2"),
        ({"max_new_token": 3}, "max_new_token=3"),
        ({"do_sample": True, "temperature": 0.0}, "temperature=0.0 must be > 0"),
        ({"max_length": 5}, "nothing to generate"),
    ],
)
def test_what_is_not_followed_is_refused_by_name(
    loaded: Speculator, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        loaded.generate(IDS, **settings)


def test_only_one_prompt_without_padding(loaded: Speculator) -> None:
    with pytest.raises(ValueError, match=r"shape \[2, 5\]"):
        loaded.generate(IDS.expand(2, -1), max_new_tokens=4)
    mask = torch.tensor([[0, 1, 1, 1, 1]])
    with pytest.raises(ValueError, match="attention_mask"):
        loaded.generate(IDS, max_new_tokens=4, attention_mask=mask)
    loaded.generate(IDS, max_new_tokens=4, attention_mask=torch.ones_like(mask))


def test_a_transformers_model_is_a_target(folder: Path, target: TinyTarget) -> None:
    loaded = xpress_exp.load(folder, target._model)
    assert torch.equal(loaded.generate(IDS, max_new_tokens=12), plain(target, max_new_tokens=12))


def test_a_target_with_other_features_is_refused(folder: Path) -> None:
    other = TinyTarget(family="qwen3", layer_ids=(1,))
    with pytest.raises(ValueError, match=r"layer_ids=\[1\], but the drafter reads \[0, 1\]"):
        xpress_exp.load(folder, other)


def test_the_solver_is_the_folders_unless_given(
    folder: Path,
    target: TinyTarget,
    make_model: Callable[..., DraftModel],
    make_content: Callable[..., Content],
    tmp_path: Path,
) -> None:
    assert isinstance(xpress_exp.load(folder, target).solver, JacobiSolver)
    given = SequentialSolver()
    assert xpress_exp.load(folder, target, given).solver is given
    bare = make_content(target, make_model(target), "none")
    write_folder(tmp_path / "bare", "zlab", bare, "float32", {}, "")
    assert isinstance(xpress_exp.load(tmp_path / "bare", target).solver, ParallelSolver)


def test_importing_the_package_imports_nothing_heavy() -> None:
    script = "import sys, xpress_exp; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
