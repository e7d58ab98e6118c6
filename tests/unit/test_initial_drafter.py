"""drafter.init: another run or an exported folder as the start of training."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig
from safetensors.torch import load_file, save_file

import xpress_exp
from xpress_exp.builders import build_model, build_target
from xpress_exp.export import Content, check_target, target_facts, write_folder
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
    caplog: pytest.LogCaptureFixture,
) -> None:
    run, _ = trained(make_cfg("arm=none"))
    cfg = make_cfg(f"drafter.init={run.path}", "drafter.block_size=8")
    with caplog.at_level(logging.WARNING):
        assert build_model(cfg, build_target(cfg)).slots.num_draft_tokens == 7
    [record] = caplog.records
    line = record.getMessage()
    assert line.startswith("drafter.block_size=8, but the drafter of drafter.init=")
    assert f"{run.path} was trained with 4: " in line and "\n" not in line
    # The size it was trained at is no news, and neither is training from scratch.
    caplog.clear()
    for override in (f"drafter.init={run.path}", "drafter.block_size=8"):
        build_model(make_cfg(override), build_target(make_cfg()))
    assert not caplog.records


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
    # Its weights are the target's, whatever the option was called.
    build_model(again, build_target(again))
    config = read_json(folder / "config.json")
    del config["xpress_exp"]["target_facts"]["probe"]
    write_json(folder / "config.json", config)
    with pytest.raises(ValueError, match="trained for target=qwen3_8b, not tiny"):
        build_model(again, build_target(again))
    folder = exported(cfg, model, tmp_path / "b")
    again = make_cfg(f"drafter.init={folder}", "target.seed=1")
    with pytest.raises(ArtefactError, match="its embedding differs"):
        build_model(again, build_target(again))


def test_runs_for_one_option_of_the_target_group_are_told_apart(
    make_cfg: Callable[..., DictConfig], trained: Callable[..., Any]
) -> None:
    """As with target=hf: the label is the same and the group leaves the sizes open."""
    cfg = make_cfg("arm=none")
    target = build_target(cfg)
    run, _ = trained(cfg)
    facts = {**read_json(run.path / "train.done.json")}
    facts["target_facts"] = asdict(target_facts(target, "tiny"))
    write_json(run.path / "train.done.json", facts)
    config = read_json(run.config_file)
    for size in ("hidden_size", "vocab_size", "num_layers"):
        config["target"][size] = None
    write_json(run.config_file, config)
    build_model(make_cfg(f"drafter.init={run.path}"), target)
    for change, said in (
        ("target.seed=1", "its embedding differs"),
        ("target.vocab_size=132", "vocab_size 128, not 132"),
        ("target.num_layers=4", "num_layers 3, not 4"),
    ):
        other = make_cfg(f"drafter.init={run.path}", change)
        with pytest.raises(ArtefactError, match=said):
            build_model(other, build_target(other))


def doubts(content: Content, target: Any, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        check_target(content, Path("folder"), target)
    return [record.getMessage() for record in caplog.records]


def test_another_chat_template_or_name_is_a_warning(
    make_cfg: Callable[..., DictConfig], caplog: pytest.LogCaptureFixture
) -> None:
    target = build_target(make_cfg())
    facts = target_facts(target, "hf", "someone/model")
    content = Content({}, {}, facts)
    # Its weights are the target's: the name does not matter.
    assert doubts(content, target, caplog) == []
    unprobed = replace(content, target=replace(facts, probe=None))
    [line] = doubts(unprobed, target, caplog)
    assert "target.name_or_path=someone/model and is used with tiny" in line
    nameless = replace(content, target=replace(facts, probe=None, name_or_path="tiny"))
    assert doubts(nameless, target, caplog) == []
    mended = replace(content, target=replace(facts, chat_template_sha256="0" * 64))
    [line] = doubts(mended, target, caplog)
    assert "another chat template (0000000000)" in line
    untold = replace(content, target=replace(facts, chat_template_sha256=None))
    assert doubts(untold, target, caplog) == []
    # A bare model has no tokenizer: its template is unknown, not empty.
    target.tokenizer = None
    assert (
        doubts(replace(content, target=replace(facts, tokenizer_sha256=None)), target, caplog) == []
    )


@pytest.mark.parametrize("arm", ["none", "markov"])
def test_a_run_keeps_its_reduced_vocabulary(
    make_cfg: Callable[..., DictConfig], trained: Callable[..., Any], tmp_path: Path, arm: str
) -> None:
    ids = list(range(4, 40, 3))
    write_json(tmp_path / "ids.json", ids)
    cfg = make_cfg(f"arm={arm}", f"drafter.draft_vocab={tmp_path / 'ids.json'}")
    run, model = trained(cfg)
    found = xpress_exp.load(run.path, build_target(cfg)).model
    assert found.vocab_ids is not None and found.vocab_ids.tolist() == ids
    assert_equal(found, model.drafter.state_dict())
    write_json(tmp_path / "ids.json", ids[:-1])
    with pytest.raises(ArtefactError, match=r"ids\.json has changed since"):
        xpress_exp.load(run.path, build_target(cfg))
