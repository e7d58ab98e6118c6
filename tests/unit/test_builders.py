"""From configuration to a model and back from disk, on the tiny experiment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig
from safetensors.torch import load_file, save_file

from xpress_exp.builders import (
    build_model,
    build_part,
    build_slots,
    build_target,
    load_model,
    save_model,
)
from xpress_exp.head import GRUHead, MarkovHead, NoHead, XPressHead
from xpress_exp.run_dir import ArtefactError, RunDir, sha256_file, write_json
from xpress_exp.solver import JacobiSolver
from xpress_exp.target import TinyTarget

HEADS = {"none": NoHead, "markov": MarkovHead, "gru": GRUHead, "xpress": XPressHead}


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
    parts = {"drafter"} if arm == "none" else {"drafter", "head"}
    assert {name.split(".")[0] for name in names} == parts


@pytest.mark.parametrize("arm", HEADS)
def test_save_and_load(
    make_cfg: Callable[..., DictConfig], trained: Callable[..., Any], arm: str
) -> None:
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
        torch.testing.assert_close(found, expected)
        assert torch.equal(loaded.base_logits(hidden), model.base_logits(hidden))
    assert set(load_file(run.model_file)) == set(model.state_dict())


def test_equal_models_are_equal_files(make_cfg: Callable[..., DictConfig], tmp_path: Path) -> None:
    cfg = make_cfg("arm=xpress")
    model = build_model(cfg, build_target(cfg))
    hashes = [save_model(RunDir(tmp_path / name), model) for name in ("a", "b")]
    assert hashes[0] == hashes[1] == sha256_file(tmp_path / "a" / "model.safetensors")


def test_unfinished_or_foreign_weights_are_refused(
    make_cfg: Callable[..., DictConfig], trained: Callable[..., Any]
) -> None:
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
def test_every_key_must_fit(
    make_cfg: Callable[..., DictConfig], trained: Callable[..., Any], damage: str
) -> None:
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
