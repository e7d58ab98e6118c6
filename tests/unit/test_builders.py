"""From configuration to a model and back from disk, on the tiny experiment."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from safetensors.torch import load_file, save_file

from xpress_exp.builders import (
    build_model,
    build_part,
    build_slots,
    build_target,
    initial_sha256,
    load_model,
    save_model,
)
from xpress_exp.export import write_dflash
from xpress_exp.head import GRUHead, MarkovHead, NoHead, XPressHead
from xpress_exp.run_dir import ArtefactError, RunDir, read_json, sha256_file, write_json
from xpress_exp.schema import run_path
from xpress_exp.solver import JacobiSolver
from xpress_exp.target import TinyTarget

CONF = Path(__file__).parents[2] / "conf"
HEADS = {"none": NoHead, "markov": MarkovHead, "gru": GRUHead, "xpress": XPressHead}


@pytest.fixture
def make_cfg(tmp_path: Path) -> Callable[..., DictConfig]:
    def make(*overrides: str) -> DictConfig:
        paths = [f"paths.runs={tmp_path / 'runs'}", f"paths.cache={tmp_path / 'cache'}"]
        with initialize_config_dir(str(CONF), version_base=None):
            return compose("config", overrides=["+experiment=tiny", *paths, *overrides])

    return make


def trained(cfg: DictConfig, head_noise: float = 0.1) -> tuple[RunDir, Any]:
    """A run as training leaves it, its weights noise."""
    model = build_model(cfg, build_target(cfg))
    torch.manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=head_noise)
    run = RunDir(run_path(cfg))
    run.claim({"drafter": json.loads(json.dumps(drafter_facts(cfg)))})
    run.mark_done("train", {"model_sha256": save_model(run, model)})
    return run, model


def drafter_facts(cfg: DictConfig) -> dict[str, Any]:
    return {str(k): list(v) if k == "target_layer_ids" else v for k, v in cfg.drafter.items()}


def test_build_part_drops_the_label_and_passes_the_rest(
    make_cfg: Callable[..., DictConfig],
) -> None:
    cfg = make_cfg("solver=jacobi", "solver.num_iterations=3", "solver.noise=fresh")
    solver = build_part(cfg.solver)
    assert isinstance(solver, JacobiSolver)
    assert (solver.num_iterations, solver.noise) == (3, "fresh")
    node = {"name": "x", "_target_": "builtins.dict", "a": 1}
    assert build_part(node, b=2) == {"a": 1, "b": 2}


def test_slots_of_the_drafter_group(make_cfg: Callable[..., DictConfig]) -> None:
    assert build_slots(make_cfg().drafter).num_draft_tokens == 3
    shift = make_cfg("drafter.slot_convention=shift", "drafter.num_unused_slots=1")
    assert build_slots(shift.drafter).num_draft_tokens == 3
    assert build_slots(make_cfg("drafter.slot_convention=shift").drafter).num_draft_tokens == 4


def test_target_of_the_config(make_cfg: Callable[..., DictConfig]) -> None:
    target = build_target(make_cfg("drafter.target_layer_ids=[1]"))
    assert isinstance(target, TinyTarget)
    assert target.layer_ids == (1,) and target.hidden_size == 64


@pytest.mark.parametrize("arm", HEADS)
def test_initialisation_is_a_function_of_the_seed(
    make_cfg: Callable[..., DictConfig], arm: str
) -> None:
    cfg = make_cfg(f"arm={arm}")
    target = build_target(cfg)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = build_model(cfg, target)
    assert torch.equal(torch.get_rng_state(), state)  # the caller's randomness is its own
    torch.manual_seed(6)
    again = build_model(cfg, target)
    other = build_model(make_cfg(f"arm={arm}", "seed=1"), target)
    assert isinstance(first.head, HEADS[arm])
    assert list(first.state_dict()) == list(again.state_dict())
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in first.state_dict().items())
    assert not torch.equal(first.drafter.fc.weight, other.drafter.fc.weight)


def test_all_arms_start_from_one_drafter(make_cfg: Callable[..., DictConfig]) -> None:
    """A comparison of heads must not be one of drafter seeds."""
    target = build_target(make_cfg())
    models = [build_model(make_cfg(f"arm={arm}"), target) for arm in HEADS]
    first = models[0].drafter.state_dict()
    for model in models[1:]:
        assert all(torch.equal(first[k], v) for k, v in model.drafter.state_dict().items())


@pytest.mark.parametrize("arm", HEADS)
def test_only_drafter_and_head_are_parameters_and_saved(
    make_cfg: Callable[..., DictConfig], arm: str
) -> None:
    cfg = make_cfg(f"arm={arm}")
    model = build_model(cfg, build_target(cfg))
    names = {name for name, _ in model.named_parameters()}
    assert set(model.state_dict()) == names
    assert {name.split(".")[0] for name in names} == {"drafter"} | {"head"} * (arm != "none")


@pytest.mark.parametrize("arm", HEADS)
def test_save_and_load(make_cfg: Callable[..., DictConfig], arm: str) -> None:
    cfg = make_cfg(f"arm={arm}")
    run, model = trained(cfg)
    loaded = load_model(cfg, build_target(cfg))
    assert not loaded.training and not any(p.requires_grad for p in loaded.parameters())
    assert all(torch.equal(v, loaded.state_dict()[k]) for k, v in model.state_dict().items())
    hidden, tokens = torch.randn(2, 4, 64), torch.randint(128, (2, 4))
    model.eval()
    model.refold()
    with torch.no_grad():
        expected = model.head.code_from(model.head.prepare(hidden), tokens)
        found = loaded.head.code_from(loaded.head.prepare(hidden), tokens)
        assert torch.equal(found, expected)
        assert torch.equal(loaded.base_logits(hidden), model.base_logits(hidden))
    assert set(load_file(run.model_file)) == set(model.state_dict())


def test_equal_models_are_equal_files(make_cfg: Callable[..., DictConfig], tmp_path: Path) -> None:
    cfg = make_cfg("arm=xpress")
    model = build_model(cfg, build_target(cfg))
    hashes = [save_model(RunDir(tmp_path / name), model) for name in ("a", "b")]
    assert hashes[0] == hashes[1] == sha256_file(tmp_path / "a" / "model.safetensors")


def test_unfinished_or_foreign_weights_are_refused(make_cfg: Callable[..., DictConfig]) -> None:
    cfg = make_cfg("arm=markov")
    target = build_target(cfg)
    with pytest.raises(ArtefactError, match=r"no finished training; run stages=\[train\]"):
        load_model(cfg, target)
    run, _ = trained(cfg)
    content = bytearray(run.model_file.read_bytes())
    content[-1] ^= 1
    run.model_file.write_bytes(bytes(content))
    with pytest.raises(ArtefactError, match=r"model\.safetensors does not have the hash"):
        load_model(cfg, target)
    run.model_file.unlink()
    with pytest.raises(ArtefactError, match=r"model\.safetensors does not have the hash"):
        load_model(cfg, target)


@pytest.mark.parametrize("damage", ["missing", "extra", "shape", "junk"])
def test_every_key_must_fit(make_cfg: Callable[..., DictConfig], damage: str) -> None:
    """DS #16, SPEC #685: a head whose weights were not saved must not load as a fresh one."""
    cfg = make_cfg("arm=gru")
    run, model = trained(cfg)
    tensors = dict(model.state_dict())
    name = "head.prefix_gru.weight_ih_l0"
    if damage == "missing":
        del tensors[name]
    elif damage == "extra":
        tensors[name := "head.unknown"] = torch.zeros(1)
    elif damage == "shape":
        tensors[name] = torch.zeros(2, 2)
    save_file(tensors, run.model_file)
    if damage == "junk":
        run.model_file.write_bytes(b"junk")
        name = "cannot be read"
    run.mark_done("train", {"model_sha256": sha256_file(run.model_file)})
    with pytest.raises(ArtefactError, match=rf"^[^\n]*model\.safetensors [^\n]*{name}[^\n]*$"):
        load_model(cfg, build_target(cfg))


def test_drafter_starts_from_another_run(make_cfg: Callable[..., DictConfig]) -> None:
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
    make_cfg: Callable[..., DictConfig], override: str, key: str
) -> None:
    run, _ = trained(make_cfg("arm=none"))
    cfg = make_cfg(f"drafter.init={run.path}", override, "target.num_heads=4")
    if override == "drafter.head_dim=8":
        cfg.target.num_heads = 8
    with pytest.raises(ValueError, match=rf"^[^\n]*{key}[^\n]*$"):
        build_model(cfg, build_target(cfg))


def test_block_size_may_differ_from_the_initial_drafter(
    make_cfg: Callable[..., DictConfig],
) -> None:
    run, _ = trained(make_cfg("arm=none"))
    cfg = make_cfg(f"drafter.init={run.path}", "drafter.block_size=8")
    assert build_model(cfg, build_target(cfg)).slots.num_draft_tokens == 7


def test_unusable_initial_folders_are_refused(
    make_cfg: Callable[..., DictConfig], tmp_path: Path
) -> None:
    target = build_target(make_cfg())
    with pytest.raises(ValueError, match=r"drafter\.init=.*does not exist; give a run directory"):
        build_model(make_cfg(f"drafter.init={tmp_path / 'nowhere'}"), target)
    run, _ = trained(make_cfg("arm=none"))
    write_json(run.config_file, {"model_type": "qwen3"})
    with pytest.raises(ValueError, match=r"config\.json does not describe a drafter"):
        build_model(make_cfg(f"drafter.init={run.path}"), target)


def test_an_exported_drafter_loads_again(
    make_cfg: Callable[..., DictConfig], tmp_path: Path
) -> None:
    cfg = make_cfg("arm=xpress")
    _, model = trained(cfg)
    folder = tmp_path / "export"
    target = {"name": "tiny", "hidden_size": 64, "vocab_size": 128, "num_layers": 3}
    tensors = model.drafter.state_dict()
    facts = drafter_facts(cfg)
    write_dflash(folder, tensors, facts, {**target, "rope_theta": 1e4}, {"made": "up"})
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


def test_reduced_draft_vocabulary(make_cfg: Callable[..., DictConfig], tmp_path: Path) -> None:
    file = tmp_path / "vocab.json"
    ids = [2, 5, 9, 40, 127]
    write_json(file, ids)
    cfg = make_cfg("arm=markov", f"drafter.draft_vocab={file}")
    target = build_target(cfg)
    model = build_model(cfg, target)
    assert model.vocab_ids is not None and model.vocab_index is not None
    assert model.vocab_ids.tolist() == ids
    inverse = [ids.index(token) if token in ids else -1 for token in range(128)]
    assert model.vocab_index.tolist() == inverse
    assert model.head.readout.shape[0] == 5
    hidden = torch.randn(3, 64)
    expected = hidden @ target.lm_head.T
    torch.testing.assert_close(model.base_logits(hidden), expected[:, ids])
    for wrong in ([5, 2], [2, 2], [], [0, 128], [-1, 4]):
        write_json(file, wrong)
        with pytest.raises(ValueError, match=r"drafter\.draft_vocab="):
            build_model(cfg, target)
