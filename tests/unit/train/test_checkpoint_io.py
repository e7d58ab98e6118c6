"""A resumed training reads data from its checkpoint, and nothing else."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig

from xpress_exp.run_dir import ArtefactError, RunDir
from xpress_exp.schema import run_path
from xpress_exp.stage.prepare import prepare
from xpress_exp.stage.train import train
from xpress_exp.train.checkpoint_io import NEEDED, PlainCheckpointIO

EXPLODED = "exploded"


class Bomb:
    """Leaves a folder behind when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, (EXPLODED,)


def sound() -> dict[str, Any]:
    return {key: {"value": torch.arange(3.0)} for key in NEEDED}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("bare", [False, True], ids=["zipped", "bare pickle"])
def test_a_bomb_is_refused_even_when_a_caller_allows_it(tmp_path: Path, bare: bool) -> None:
    file = tmp_path / "last.ckpt"
    if bare:
        file.write_bytes(pickle.dumps({**sound(), "extra": Bomb()}))
    else:
        torch.save({**sound(), "extra": Bomb()}, file)
    with pytest.raises(ArtefactError, match=r"^[^\n]*last\.ckpt[^\n]*not executed[^\n]*delete"):
        PlainCheckpointIO().load_checkpoint(file, None, weights_only=False)
    assert not Path(EXPLODED).exists()


def test_damage_is_one_error(tmp_path: Path) -> None:
    file = tmp_path / "last.ckpt"
    torch.save(sound(), file)
    whole = file.read_bytes()
    for content in (b"", whole[: len(whole) // 2], b"\x80\x02}q\x00(X\x03\x00\x00\x00a\xf5bu."):
        file.write_bytes(content)
        with pytest.raises(ArtefactError, match=r"^[^\n]*last\.ckpt[^\n]*damaged[^\n]*$"):
            PlainCheckpointIO().load_checkpoint(file)
    torch.save({"state_dict": {}}, file)
    with pytest.raises(ArtefactError, match=r"lacks optimizer_states, lr_schedulers, loops"):
        PlainCheckpointIO().load_checkpoint(file)


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "last.ckpt"
    PlainCheckpointIO().save_checkpoint(sound(), file)
    found = PlainCheckpointIO().load_checkpoint(file)
    assert list(found) == list(NEEDED)
    assert torch.equal(found["loops"]["value"], torch.arange(3.0))


def test_training_does_not_resume_from_a_bomb(make_cfg: Callable[..., DictConfig]) -> None:
    cfg = make_cfg("arm=none", "optim.max_steps=1")
    prepare(cfg)
    run = RunDir(run_path(cfg))
    run.checkpoint_dir.mkdir(parents=True)
    torch.save({**sound(), "extra": Bomb()}, run.last_checkpoint)
    with pytest.raises(ArtefactError, match="not executed"):
        train(cfg)
    assert not Path(EXPLODED).exists()
    assert run.done("train") is None
