"""drafter.init: another run or an exported folder as the start of training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig
from safetensors.torch import load_file

from xpress_exp.builders import build_model, build_target
from xpress_exp.export import write_dflash
from xpress_exp.run_dir import read_json, sha256_file, write_json
from xpress_exp.schema import initial_sha256, plain

TARGET = {
    "name": "tiny",
    "hidden_size": 64,
    "vocab_size": 128,
    "num_layers": 3,
    "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"},
}


def test_drafter_starts_from_another_run(
    make_cfg: Callable[..., DictConfig], trained: Callable[..., Any]
) -> None:
    run, source = trained(make_cfg("arm=none"))
    cfg = make_cfg("arm=xpress", f"drafter.init={run.path}")
    model = build_model(cfg, build_target(cfg))
    state = source.drafter.state_dict()
    assert all(torch.equal(state[k], v) for k, v in model.drafter.state_dict().items())
    assert not model.head.readout.any()
    assert initial_sha256(cfg) == sha256_file(run.model_file)
    assert initial_sha256(make_cfg()) is None


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("drafter.num_layers=2", r"drafter\.num_layers=2.*set drafter\.num_layers=1"),
        ("drafter.head_dim=8", r"drafter\.head_dim=8.*set drafter\.head_dim=16"),
        ("drafter.slot_convention=shift", r"drafter\.slot_convention=shift.*fill_in"),
        ("drafter.target_layer_ids=[0]", r"drafter\.target_layer_ids=\[0\].*\[0, 1\]"),
        ("drafter.mask_token_id=1", r"drafter\.mask_token_id=1.*set drafter\.mask_token_id=3"),
    ],
)
def test_another_architecture_is_refused_by_key(
    make_cfg: Callable[..., DictConfig], trained: Callable[..., Any], override: str, key: str
) -> None:
    run, _ = trained(make_cfg("arm=none"))
    cfg = make_cfg(f"drafter.init={run.path}", override, "target.num_heads=4")
    if override == "drafter.head_dim=8":
        cfg.target.num_heads = 8
    with pytest.raises(ValueError, match=rf"^[^\n]*{key}[^\n]*$"):
        build_model(cfg, build_target(cfg))


def test_block_size_may_differ_from_the_initial_drafter(
    make_cfg: Callable[..., DictConfig],
    trained: Callable[..., Any],
) -> None:
    run, _ = trained(make_cfg("arm=none"))
    cfg = make_cfg(f"drafter.init={run.path}", "drafter.block_size=8")
    assert build_model(cfg, build_target(cfg)).slots.num_draft_tokens == 7


def test_unusable_initial_folders_are_refused(
    make_cfg: Callable[..., DictConfig], trained: Callable[..., Any], tmp_path: Path
) -> None:
    target = build_target(make_cfg())
    with pytest.raises(ValueError, match=r"^drafter\.init=[^\n]*nowhere[^\n]*$"):
        build_model(make_cfg(f"drafter.init={tmp_path / 'nowhere'}"), target)
    run, _ = trained(make_cfg("arm=none"))
    write_json(run.config_file, {"model_type": "qwen3"})
    with pytest.raises(ValueError, match=r"config\.json does not describe a drafter"):
        build_model(make_cfg(f"drafter.init={run.path}"), target)


def test_an_exported_drafter_loads_again(
    make_cfg: Callable[..., DictConfig], trained: Callable[..., Any], tmp_path: Path
) -> None:
    cfg = make_cfg("arm=xpress")
    _, model = trained(cfg)
    folder = tmp_path / "export"
    tensors = model.drafter.state_dict()
    facts = plain(cfg.drafter)
    write_dflash(folder, tensors, facts, TARGET, {"made": "up"})
    stored = load_file(folder / "model.safetensors")
    assert len(stored) == 3 + 11  # one layer; 58 with five
    assert {"fc.weight", "hidden_norm.weight", "norm.weight"} < set(stored)
    assert "layers.0.self_attn.q_norm.weight" in stored
    config = read_json(folder / "config.json")
    assert config["block_size"] == 4 and config["num_hidden_layers"] == 1
    assert config["dflash_config"] == {"mask_token_id": 3, "target_layer_ids": [0, 1]}
    again_cfg = make_cfg("arm=none", f"drafter.init={folder}")
    again = build_model(again_cfg, build_target(again_cfg)).drafter.state_dict()
    for name, tensor in tensors.items():
        assert torch.equal(again[name], tensor.half().float())


def test_a_published_checkpoint_loads_without_a_record_of_ours(
    make_cfg: Callable[..., DictConfig], trained: Callable[..., Any], tmp_path: Path
) -> None:
    cfg = make_cfg("arm=none")
    _, model = trained(cfg)
    folder = tmp_path / "published"
    write_dflash(folder, model.drafter.state_dict(), plain(cfg.drafter), TARGET, {})
    config = read_json(folder / "config.json")
    del config["xpress_exp"]
    write_json(folder / "config.json", config)
    (folder / "provenance.json").unlink()
    again_cfg = make_cfg("arm=none", f"drafter.init={folder}")
    again = build_model(again_cfg, build_target(again_cfg)).drafter.state_dict()
    assert all(
        torch.equal(again[n], t.half().float()) for n, t in model.drafter.state_dict().items()
    )
    assert initial_sha256(again_cfg) is not None


def test_a_drafter_of_another_target_is_refused(
    make_cfg: Callable[..., DictConfig], trained: Callable[..., Any], tmp_path: Path
) -> None:
    cfg = make_cfg("arm=none")
    _, model = trained(cfg)
    other = {**TARGET, "name": "qwen3_8b"}
    write_dflash(tmp_path, model.drafter.state_dict(), plain(cfg.drafter), other, {})
    again = make_cfg(f"drafter.init={tmp_path}")
    with pytest.raises(ValueError, match="trained for target=qwen3_8b, not tiny"):
        build_model(again, build_target(again))
