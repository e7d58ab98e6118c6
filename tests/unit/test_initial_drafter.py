"""drafter.init: another run or an exported folder as the start of training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig
from safetensors.torch import load_file, save_file

from xpress_exp.builders import build_model, build_target
from xpress_exp.export import Content, target_facts, write_folder
from xpress_exp.run_dir import ArtefactError, read_json, sha256_file, write_json
from xpress_exp.schema import initial_sha256, plain


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


def exported(
    cfg: DictConfig, model: Any, folder: Path, name: str = "zlab", target: str = "tiny"
) -> Path:
    facts = target_facts(build_target(cfg), target)
    content = Content(plain(cfg.drafter), plain(cfg.head), facts, model.state_dict())
    write_folder(folder, name, content, "float16", {}, "")
    return folder


def halves(model: Any) -> dict[str, torch.Tensor]:
    return {name: t.half().float() for name, t in model.drafter.state_dict().items()}


def assert_equal(found: Any, expected: dict[str, torch.Tensor]) -> None:
    state = found.drafter.state_dict()
    assert set(state) == set(expected)
    assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize(
    ("name", "arm"),
    [
        ("hf", "xpress"),
        ("hf", "none"),
        ("zlab", "none"),
        ("domino", "gru"),
        ("deepspec", "markov"),
        ("speculators", "none"),
        ("speculators", "markov"),
        ("speculators", "xpress"),
        ("vllm_xpress", "xpress"),
    ],
)
@pytest.mark.parametrize("is_published", [False, True])
def test_the_drafter_of_every_format_loads_again(
    make_cfg: Callable[..., DictConfig],
    trained: Callable[..., Any],
    tmp_path: Path,
    name: str,
    arm: str,
    is_published: bool,
) -> None:
    """As exported, and as others publish: without a record of ours."""
    cfg = make_cfg(f"arm={arm}")
    _, model = trained(cfg)
    folder = exported(cfg, model, tmp_path / "export", name)
    if is_published and name != "hf":
        config = read_json(folder / "config.json")
        del config["xpress_exp"]
        write_json(folder / "config.json", config)
        (folder / "provenance.json").unlink()
    again_cfg = make_cfg("arm=none", f"drafter.init={folder}")
    assert_equal(build_model(again_cfg, build_target(again_cfg)), halves(model))
    assert initial_sha256(again_cfg) is not None


def test_a_head_is_asked_for_whole_even_where_the_drafter_is_wanted(
    make_cfg: Callable[..., DictConfig], trained: Callable[..., Any], tmp_path: Path
) -> None:
    cfg = make_cfg("arm=gru")
    _, model = trained(cfg)
    folder = exported(cfg, model, tmp_path / "export", "domino")
    tensors = load_file(folder / "model.safetensors")
    del tensors["prefix_gru.weight_hh_l0"]
    (folder / "provenance.json").unlink()
    save_file(tensors, folder / "model.safetensors")
    again = make_cfg("arm=none", f"drafter.init={folder}")
    with pytest.raises(ArtefactError, match=r"lacks prefix_gru\.weight_hh_l0"):
        build_model(again, build_target(again))


def test_next_token_labels_are_not_loaded_as_filled_in_slots(
    make_cfg: Callable[..., DictConfig], trained: Callable[..., Any], tmp_path: Path
) -> None:
    """deepseek-ai/dflash_*_block7: the class alone says shift, and there is no head to tell."""
    cfg = make_cfg("arm=none", "drafter.slot_convention=shift")
    _, model = trained(cfg)
    folder = exported(cfg, model, tmp_path / "export", "deepspec")
    config = read_json(folder / "config.json")
    for key in ("xpress_exp", "sample_from_anchor", "dflash_config", "num_speculative_tokens"):
        del config[key]
    write_json(folder / "config.json", config)
    again = make_cfg("arm=none", f"drafter.init={folder}")
    with pytest.raises(ValueError, match=r"slot_convention=fill_in, but.*has shift"):
        build_model(again, build_target(again))
    again = make_cfg("arm=none", f"drafter.init={folder}", "drafter.slot_convention=shift")
    assert_equal(build_model(again, build_target(again)), halves(model))


def test_a_drafter_of_another_target_is_refused(
    make_cfg: Callable[..., DictConfig], trained: Callable[..., Any], tmp_path: Path
) -> None:
    cfg = make_cfg("arm=none")
    _, model = trained(cfg)
    folder = exported(cfg, model, tmp_path / "a", target="qwen3_8b")
    again = make_cfg(f"drafter.init={folder}")
    with pytest.raises(ValueError, match="trained for target=qwen3_8b, not tiny"):
        build_model(again, build_target(again))
    folder = exported(cfg, model, tmp_path / "b")
    again = make_cfg(f"drafter.init={folder}", "target.seed=1")
    with pytest.raises(ArtefactError, match="its embedding differs"):
        build_model(again, build_target(again))
