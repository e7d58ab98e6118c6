from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from xpress_exp.data import BuiltinPrompts
from xpress_exp.data.regenerate import regenerate
from xpress_exp.data.response import GenerationSettings, ResponseSet
from xpress_exp.data.response_store import pack, shipped_responses, sidecar, unpack
from xpress_exp.run_dir import ArtefactError, read_json
from xpress_exp.target import TinyTarget, tiny_target

GENERATION = GenerationSettings(1.0, 1.0, max_new_tokens=4, batch_size=4, seed=0)
MAX_LENGTH = 160  # some of the prompts do not fit


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ResponseSet]:
    folder = tmp_path_factory.mktemp("shipped")
    source = BuiltinPrompts("train", 20, 0)
    made = regenerate(source, tiny_target(), GENERATION, MAX_LENGTH, 0.5, folder / "made")
    pack(made, folder / "responses.xz")
    return folder / "responses.xz", made


def test_unpack_returns_what_was_packed(shipped: tuple[Path, ResponseSet]) -> None:
    path, made = shipped
    back = unpack(path)
    assert 0 < len(made.responses) < 20
    assert back.content_sha256 == made.content_sha256
    assert back.content_sha256 == read_json(sidecar(path))["content_sha256"]
    assert (back.identity, back.counts, back.reasons) == (made.identity, made.counts, made.reasons)
    for one, other in zip(back.responses, made.responses, strict=True):
        assert one.input_ids.tolist() == other.input_ids.tolist()
        assert len(one.prompt_ids) == len(other.prompt_ids)
        assert (one.index, one.id, one.domain) == (other.index, other.id, other.domain)
        assert (one.family, one.finish_reason) == (other.family, other.finish_reason)


def test_packing_is_deterministic(shipped: tuple[Path, ResponseSet], tmp_path: Path) -> None:
    path, made = shipped
    pack(made, tmp_path / "again.xz")
    assert (tmp_path / "again.xz").read_bytes() == path.read_bytes()


def test_large_ids_survive(shipped: tuple[Path, ResponseSet], tmp_path: Path) -> None:
    _, made = shipped
    wide = dataclasses.replace(
        made.responses[0], response_ids=np.array([151_669, 65_536, 0], dtype=np.int32)
    )
    pack(dataclasses.replace(made, responses=(wide,)), tmp_path / "wide.xz")
    (back,) = unpack(tmp_path / "wide.xz").responses
    assert back.response_ids.tolist() == [151_669, 65_536, 0]


@pytest.mark.parametrize("num_prompts", [20, 9])
def test_a_prefix_of_the_source_is_served(
    shipped: tuple[Path, ResponseSet], target: TinyTarget, num_prompts: int
) -> None:
    path, made = shipped
    source = BuiltinPrompts("train", num_prompts, 0)
    other_batches = dataclasses.replace(GENERATION, batch_size=7)
    served = shipped_responses(path, source, target, other_batches, MAX_LENGTH)
    expected = [row for row in made.responses if row.index < num_prompts]
    assert [row.id for row in served.responses] == [row.id for row in expected]
    counts = served.counts
    assert counts["input"] == num_prompts == len(served.responses) + len(served.reasons)
    assert counts["success"] + counts["failed"] + counts["skipped"] == num_prompts


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_length": 1024}, "data.max_length=1024 but the shipped .* 160"),
        ({"generation": dataclasses.replace(GENERATION, seed=1)}, "data.generation.seed=1"),
        ({"source": BuiltinPrompts("train", 20, 1)}, "data.source.seed=1"),
        ({"target": tiny_target(seed=1)}, "target.arguments="),
        ({"source": BuiltinPrompts("train", 60, 0)}, "is not among the shipped rows"),
    ],
)
def test_a_mismatch_names_the_field_and_the_remedy(
    shipped: tuple[Path, ResponseSet], change: dict[str, object], message: str
) -> None:
    asked: dict[str, object] = {
        "source": BuiltinPrompts("train", 20, 0),
        "target": tiny_target(),
        "generation": GENERATION,
        "max_length": MAX_LENGTH,
        **change,
    }
    with pytest.raises(ValueError, match=message) as error:
        shipped_responses(shipped[0], **asked)  # type: ignore[arg-type]
    assert "data.responses=regenerate" in str(error.value)


def test_another_prompt_under_the_same_id_is_noticed(
    shipped: tuple[Path, ResponseSet], target: TinyTarget
) -> None:
    source = BuiltinPrompts("train", 20, 0)
    changed = dataclasses.replace(source._prompts[0], text="something else")
    source._prompts[0] = changed
    with pytest.raises(ValueError, match=r"has another prompt"):
        shipped_responses(shipped[0], source, target, GENERATION, MAX_LENGTH)


def test_a_damaged_file_is_named(shipped: tuple[Path, ResponseSet], tmp_path: Path) -> None:
    _, made = shipped
    path = tmp_path / "responses.xz"
    with pytest.raises(ArtefactError, match=r"responses.xz.json is missing"):
        unpack(path)
    pack(made, path)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(ArtefactError, match=r"responses.xz differs"):
        unpack(path)
