"""Published folders are understood by class and flags; damage and contradictions are named."""

from __future__ import annotations

import argparse
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import xpress_exp
from xpress_exp.export import read_folder, write_folder
from xpress_exp.export.reading import layout_of
from xpress_exp.run_dir import ArtefactError
from xpress_exp.target import TinyTarget

FILE = Path("config.json")
QWEN3_8B = {
    "hidden_size": 4096,
    "vocab_size": 151936,
    "intermediate_size": 12288,
    "num_hidden_layers": 5,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "layer_types": ["full_attention"] * 5,
    "num_target_layers": 36,
    "rope_theta": 1000000,
    "rope_scaling": None,
    "use_sliding_window": False,
}
SPECIAL = {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]}
MARKOV = {"markov_rank": 256, "markov_head_type": "vanilla"}
DFLASH, DSPARK = ["DFlashDraftModel"], ["Qwen3DSparkModel"]
DOMINO = {
    **SPECIAL,
    "projector_type": "domino",
    "emb_dim": 256,
    "gru_hidden_dim": 1024,
    "pure_draft_prefix_len": 1,
}
SPECULATORS = {
    "transformer_layer_config": {**QWEN3_8B, "rope_parameters": {"rope_theta": 1e6}},
    "block_size": 8,
    "aux_hidden_state_layer_ids": [2, 18, 33],
    "mask_token_id": 151669,
}
VANILLA = {"name": "markov", "rank": 256, "variant": "vanilla"}
NONE = {"name": "none"}
# (what it is, config.json beyond the sizes, convention, unused slots, head)
PUBLISHED: list[tuple[str, dict[str, Any], str, int, dict[str, Any]]] = [
    (
        "z-lab/Qwen3-8B-DFlash-b16",
        {"architectures": DFLASH, "block_size": 16, "dflash_config": SPECIAL},
        "fill_in",
        0,
        NONE,
    ),
    (
        "newer z-lab: block_size and rope moved",
        {
            "architectures": DFLASH,
            "dflash_config": {**SPECIAL, "block_size": 16},
            "rope_theta": None,
            "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
        },
        "fill_in",
        0,
        NONE,
    ),
    (
        "deepseek-ai/dspark_qwen3_8b_block7",
        {"architectures": DSPARK, "block_size": 7, **SPECIAL, **MARKOV},
        "shift",
        0,
        VANILLA,
    ),
    (
        "deepseek-ai/dflash_qwen3_8b_block7: no head, labels one further",
        {"architectures": DSPARK, "block_size": 7, **SPECIAL, "markov_rank": 0},
        "shift",
        0,
        NONE,
    ),
    (
        "SpecForge's DSpark: all in dflash_config",
        {
            "architectures": ["DSparkDraftModel"],
            "block_size": 16,
            "dflash_config": {**SPECIAL, **MARKOV},
        },
        "shift",
        0,
        VANILLA,
    ),
    (
        "the xPress authors' Markov baseline for vLLM",
        {
            "architectures": DSPARK,
            "block_size": 16,
            "dflash_config": SPECIAL,
            "sample_from_anchor": False,
            **MARKOV,
        },
        "fill_in",
        0,
        VANILLA,
    ),
    (
        "Huang2020/Qwen3-8B-Domino-b16",
        {
            "architectures": DFLASH,
            "block_size": 16,
            "emb_dim": 256,
            "dflash_config": {**DOMINO, "shift_label": True},
        },
        "shift",
        1,
        {"name": "gru", "rank": 256, "gru_hidden_size": 1024, "pure_draft_prefix_len": 1},
    ),
    (
        "Domino without shift_label",
        {"architectures": ["DominoDraftModel"], "block_size": 16, "dflash_config": DOMINO},
        "fill_in",
        0,
        {"name": "gru", "rank": 256, "gru_hidden_size": 1024, "pure_draft_prefix_len": 1},
    ),
    (
        "VictorZheng/Qwen3-8B-XPress-b16",
        {
            "architectures": ["Qwen3XPressModel"],
            "block_size": 16,
            "dflash_config": SPECIAL,
            "sample_from_anchor": False,
            "xpress_rank": 256,
            "xpress_mlp_hidden": 512,
            "xpress_block_size": 16,
            "xpress_num_passes": 6,
        },
        "fill_in",
        0,
        {
            "name": "xpress",
            "rank": 256,
            "mix": "inclusive",
            "mlp": "swiglu",
            "anchor_prev": "predecessor",
        },
    ),
]


@pytest.mark.parametrize(
    ("config", "convention", "unused", "head"),
    [row[1:] for row in PUBLISHED],
    ids=[row[0] for row in PUBLISHED],
)
def test_published_configs(
    config: dict[str, Any], convention: str, unused: int, head: dict[str, Any]
) -> None:
    full = {**QWEN3_8B, **config}
    content = layout_of(full, FILE).read(full, FILE)
    assert content.drafter["slot_convention"] == convention
    assert content.drafter["num_unused_slots"] == unused
    assert content.drafter["target_layer_ids"] == [1, 9, 17, 25, 33]
    assert content.drafter["mask_token_id"] == 151669
    assert content.drafter["num_layers"] == 5 and content.drafter["num_kv_heads"] == 8
    assert content.head == head
    assert content.target.rope["rope_theta"] == 1e6


@pytest.mark.parametrize(
    ("kind", "flag", "convention"),
    [
        ("dflash", None, "fill_in"),
        ("dflash", True, "shift"),
        ("dspark", None, "shift"),
        ("dspark", False, "fill_in"),
        ("xpress", None, "fill_in"),
        ("xpress", True, "shift"),
    ],
)
def test_speculators_classes_have_conventions_of_their_own(
    kind: str, flag: bool | None, convention: str
) -> None:
    config = {"speculators_model_type": kind, **SPECULATORS, **MARKOV, "xpress_rank": 256}
    if flag is not None:
        config["sample_from_anchor"] = flag
    content = layout_of(config, FILE).read(config, FILE)
    assert content.drafter["slot_convention"] == convention
    assert content.drafter["target_layer_ids"] == [1, 17, 32]


# (change of a z-lab config, what is said)
REFUSED = [
    ({"block_size": 8, "dflash_config": {**SPECIAL, "block_size": 16}}, "dflash_config.block_size"),
    ({"rope_parameters": {"rope_theta": 10000.0}}, "rope_theta=1000000 but rope_parameters"),
    ({"layer_types": ["sliding_attention"] * 5}, "layer_types has sliding_attention"),
    ({"is_causal": True}, "is_causal=True is not supported"),
    ({"rms_norm_eps": 1e-5}, "rms_norm_eps=1e-05 is not supported"),
    ({"attention_bias": True}, "attention_bias=True"),
    ({"hidden_act": "gelu"}, "hidden_act=gelu"),
    ({"dflash_config": {"mask_token_id": 3}}, "lacks target_layer_ids"),
    ({"dflash_config": {**SPECIAL, "target_layer_ids": [-1, 3]}}, "means the embedding"),
    ({"intermediate_size": "big"}, "intermediate_size='big' must be a whole number"),
]


@pytest.mark.parametrize(("change", "said"), REFUSED, ids=[row[1] for row in REFUSED])
def test_contradictions_and_unknown_functions_are_named(change: dict[str, Any], said: str) -> None:
    base = {"architectures": DFLASH, "block_size": 16, "dflash_config": SPECIAL}
    config = {**QWEN3_8B, **base, **change}
    with pytest.raises(ArtefactError) as told:
        layout_of(config, FILE).read(config, FILE)
    assert said in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
        ({"model_type": "qwen3"}, "does not describe a drafter"),
        (
            {"architectures": DFLASH, "dflash_config": {"projector_type": "muse"}},
            "projector_type=muse",
        ),
    ],
)
def test_folders_of_something_else_are_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        layout_of(config, FILE)


def refused(folder: Path, *words: str, kind: type[Exception] = ArtefactError) -> None:
    with pytest.raises(kind) as told:
        read_folder(folder)
    text = str(told.value)
    assert "\n" not in text and all(word in text for word in words), text


# change of config.json of an exported folder without our record -> what is said
CONTRADICTED = [
    ("num_hidden_layers", 3, "lacks layers.2."),
    ("num_hidden_layers", 1, "unknown layers.1."),
    ("intermediate_size", 48, "mlp.gate_proj.weight has shape [40, 32]"),
    ("num_key_value_heads", 4, "k_proj.weight has shape"),
    ("head_dim", 8, "has shape"),
    ("hidden_size", 64, "has shape"),
]


@pytest.mark.parametrize(("key", "value", "said"), CONTRADICTED)
def test_fields_that_contradict_the_weights(
    write: Callable[..., Path], damage: Any, key: str, value: int, said: str
) -> None:
    folder, (edit, _) = write("zlab", keep=False), damage
    layers = ["full_attention"] * (value if key == "num_hidden_layers" else 2)
    edit(folder, lambda config: config.update({key: value, "layer_types": layers}))
    refused(folder, "model.safetensors", said)


@pytest.mark.parametrize(
    ("name", "head", "key", "value"),
    [
        ("vllm_xpress", "xpress", "xpress_rank", 7),
        ("vllm_xpress", "xpress", "xpress_mlp_hidden", 99),
        ("vllm_xpress", "xpress", "xpress_block_size", 16),
        ("vllm_xpress", "xpress", "block_size", 8),
        ("speculators", "xpress", "xpress_rank", 7),
        ("speculators", "xpress", "xpress_mlp_ratio", 4),
        ("speculators", "markov", "markov_head_type", "gated"),
        ("speculators", "none", "draft_vocab_size", 32),
        ("deepspec", "markov", "markov_rank", 0),
    ],
)
def test_heads_that_contradict_the_weights(
    write: Callable[..., Path], damage: Any, name: str, head: str, key: str, value: Any
) -> None:
    folder, (edit, _) = write(name, head, keep=False), damage
    edit(folder, lambda config: config.update({key: value}))
    edit(folder, lambda config: config.pop("dflash_config", {}).get("x"))
    if name != "speculators":
        special = {"mask_token_id": 3, "target_layer_ids": [0, 1]}
        edit(folder, lambda config: config.update({"dflash_config": special}))
    with pytest.raises(ArtefactError):
        read_folder(folder)


def test_our_record_and_the_engine_s_fields_must_agree(
    write: Callable[..., Path], damage: Any
) -> None:
    folder, (edit, _) = write("zlab"), damage
    edit(folder, lambda config: config["dflash_config"].update({"target_layer_ids": [0, 2]}))
    refused(folder, "target_layer_ids=[0, 2], but xpress_exp.drafter.target_layer_ids=[0, 1]")


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("how", ["truncated", "header", "payload", "shortened", "empty"])
def test_damaged_files(write: Callable[..., Path], damage: Any, how: str, recorded: bool) -> None:
    """With a recorded hash every damage is found; without one, all that leaves the file unsound."""
    folder = write("zlab", keep=recorded)
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    if how == "truncated":
        content = content[: len(content) // 2]
    elif how == "header":
        content[20] ^= 0xFF
    elif how == "payload":
        content[-1] ^= 0x01
    elif how == "shortened":
        del content[-3:]
    else:
        content = bytearray()
    file.write_bytes(bytes(content))
    if how == "payload" and not recorded:
        read_folder(folder)  # one changed digit of a weight cannot be known from the file alone
        return
    refused(folder, "model.safetensors", "hash" if recorded else "cannot be read")


def test_a_flipped_exponent_is_no_weight(write: Callable[..., Path], damage: Any) -> None:
    folder, (_, edit_tensors) = write("zlab", keep=False), damage
    edit_tensors(folder, lambda t: t["norm.weight"].view(torch.int32)[3].fill_(0x7F800001))
    refused(folder, "norm.weight", "NaN")


def test_missing_and_unknown_tensors_are_named(write: Callable[..., Path], damage: Any) -> None:
    folder, (_, edit_tensors) = write("vllm_xpress", "xpress", keep=False), damage
    edit_tensors(folder, lambda t: t.update({"surprise": t.pop("xpress_head.mix.L")}))
    refused(folder, "lacks xpress_head.mix.L", "unknown surprise")


def test_a_confidence_head_is_left_out(
    write: Callable[..., Path], damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Published DSpark checkpoints carry one; it changes no draft."""
    folder, (_, edit_tensors) = write("deepspec", "markov", "shift", keep=False), damage
    head = {
        "confidence_head.proj.weight": torch.ones(1, 38),
        "confidence_head.proj.bias": torch.ones(1),
    }
    edit_tensors(folder, lambda t: t.update(head))
    assert not any("confidence" in name for name in read_folder(folder).tensors)
    assert "confidence_head.proj.weight" in caplog.text


class Bomb:
    def __reduce__(self) -> Any:
        return os.system, ("touch exploded",)


@pytest.mark.parametrize("kind", ["bare", "torch"])
def test_a_pickle_under_a_safetensors_name_is_not_opened(
    write: Callable[..., Path], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write("zlab", keep=False)
    file = folder / "model.safetensors"
    if kind == "bare":
        file.write_bytes(pickle.dumps({"fc.weight": Bomb()}))
    else:
        torch.save({"fc.weight": Bomb()}, file)
    refused(folder, "pickle", "not opened")
    assert not (tmp_path / "exploded").exists()


def as_training_pickle(folder: Path, **beyond: Any) -> dict[str, Any]:
    """What the authors' training script saves, made from a `vllm_xpress` folder."""
    tensors = load_file(folder / "model.safetensors")
    head = {n.removeprefix("xpress_head."): t for n, t in tensors.items() if "xpress_head" in n}
    drafter = {n: t for n, t in tensors.items() if "xpress_head" not in n}
    arguments = argparse.Namespace(markov_rank=6, mlp_ratio=2, no_residual=True)
    head["mix.tril"] = torch.ones(4, 4).tril()
    parts = {"draft_state_dict": drafter, "refiner_state_dict": head}
    return {**parts, "args": arguments, "global_step": 7, **beyond}


def test_a_training_checkpoint_of_the_authors(
    write: Callable[..., Path],
    damage: Any,
    target: TinyTarget,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`.pt` beside the config.json of the dFlash it started from."""
    monkeypatch.chdir(tmp_path)
    folder, (edit, _) = write("vllm_xpress", "xpress", keep=False), damage
    expected = read_folder(folder)
    stored = as_training_pickle(folder)
    (folder / "model.safetensors").unlink()
    for key in ("xpress_rank", "xpress_mlp_hidden", "xpress_block_size", "sample_from_anchor"):
        edit(folder, lambda config, key=key: config.pop(key))
    edit(folder, lambda config: config.update({"architectures": DFLASH}))
    torch.save(stored, folder / "refiner_cotrain_403k.pt")
    content = read_folder(folder)
    assert content.head == expected.head
    assert set(content.tensors) == set(expected.tensors)
    assert all(torch.equal(t, expected.tensors[n]) for n, t in content.tensors.items())
    xpress_exp.load(folder, target)
    for beyond, said in (
        ({"extra": Bomb()}, "not executed"),
        ({"args": argparse.Namespace(no_residual=False)}, "no_residual=False"),
        ({"refiner_state_dict": 3}, "lacks refiner_state_dict"),
    ):
        torch.save({**stored, **beyond}, folder / "refiner_cotrain_403k.pt")
        refused(folder, said)
    assert not Path("exploded").exists()


# What a reader of another target is told; each changes one thing about the target.
OTHER_TARGETS = [
    ({"vocab_size": 48}, "vocab_size 64, not 48"),
    ({"num_layers": 4}, "num_layers 3, not 4"),
    ({"hidden_size": 64}, "hidden_size 32, not 64"),
    ({"seed": 1}, "its embedding differs"),
]


@pytest.mark.parametrize("name", ["hf", "zlab", "speculators"])
@pytest.mark.parametrize(("change", "said"), OTHER_TARGETS, ids=[row[1] for row in OTHER_TARGETS])
def test_another_target_is_named(
    write: Callable[..., Path],
    make_target: Callable[..., TinyTarget],
    name: str,
    change: dict[str, Any],
    said: str,
) -> None:
    other = make_target("qwen3", dtype=torch.float32, **change)
    with pytest.raises(ArtefactError, match=said):
        xpress_exp.load(write(name), other)


def test_another_tokenizer_is_named(
    write: Callable[..., Path], target: TinyTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write("hf", "markov")

    class Other:
        def get_vocab(self) -> dict[str, int]:
            return {"a": 0, "b": 1}

    monkeypatch.setattr(target, "tokenizer", Other())
    with pytest.raises(ArtefactError, match=r"tokenizer \w{10}, not \w{10}"):
        xpress_exp.load(folder, target)


def test_copies_of_the_targets_matrices_are_compared(
    write: Callable[..., Path], damage: Any, target: TinyTarget
) -> None:
    """A published folder names no target; its own embedding and LM head tell it."""
    folder, (_, edit_tensors) = write("deepspec", "markov", "shift", keep=False), damage
    xpress_exp.load(folder, target)
    edit_tensors(folder, lambda t: t["lm_head.weight"].mul_(-1))
    with pytest.raises(ArtefactError, match=r"lm_head\.weight is not the target's"):
        xpress_exp.load(folder, target)


def test_a_target_of_other_precision_is_the_same_target(
    write: Callable[..., Path], make_target: Callable[..., TinyTarget]
) -> None:
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        xpress_exp.load(write("deepspec", "markov", "shift"), make_target("qwen3", dtype=dtype))


def test_a_rope_that_differs_from_the_targets_is_named(
    write: Callable[..., Path], damage: Any, target: TinyTarget
) -> None:
    folder, (edit, _) = write("zlab", keep=False), damage
    rope = {"rope_theta": 7.0, "rope_parameters": {"rope_theta": 7.0}}
    edit(folder, lambda config: config.update(rope))
    with pytest.raises(ArtefactError, match=r"rope_theta 7\.0, not 10000"):
        xpress_exp.load(folder, target)


def test_old_domino_names_are_read(write: Callable[..., Path], damage: Any) -> None:
    folder, (_, edit_tensors) = write("domino", "gru", keep=False), damage
    expected = read_folder(folder).tensors

    def rename(tensors: dict[str, Any]) -> None:
        for name in [n for n in tensors if n.startswith(("prefix_gru", "embed_proj"))]:
            tensors[f"logit_head.{name}"] = tensors.pop(name)

    edit_tensors(folder, rename)
    assert all(torch.equal(t, expected[n]) for n, t in read_folder(folder).tensors.items())


def test_a_folder_cannot_name_a_class_outside_the_heads(
    write: Callable[..., Path], damage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even to be imported: that would run its code."""
    (tmp_path / "stranger.py").write_text(
        "from pathlib import Path\nfrom xpress_exp.head import NoHead as Head\n"
        f"Path({str(tmp_path / 'imported')!r}).touch()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    folder, (edit, _) = write("hf", "markov"), damage
    outside = {"name": "mine", "_target_": "stranger.Head"}
    edit(folder, lambda config: config["xpress_exp"].update({"head": outside}))
    refused(folder, "head.name=mine (stranger.Head) is no head here", kind=ValueError)
    assert not (tmp_path / "imported").exists()


def test_both_lists_of_a_reduced_vocabulary_must_agree(
    target: TinyTarget,
    make_model: Callable[..., Any],
    make_content: Callable[..., Any],
    damage: Any,
    tmp_path: Path,
) -> None:
    model = make_model(target, vocab_ids=torch.tensor([2, 5, 9]), randomize=0.3)
    write_folder(tmp_path, "speculators", make_content(target, model, "none"), "float32", {}, "")
    (tmp_path / "provenance.json").unlink()
    damage[1](tmp_path, lambda tensors: tensors["t2d"][6].fill_(True))
    refused(tmp_path, "t2d and d2t list different tokens")


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([2, 5, 64], "holds id 64, but vocab_size is 64"),
        ([5, 2, 9], "distinct ascending"),
        ([-3, 2, 9], "distinct ascending"),
        ([2, 2, 9], "distinct ascending"),
        ([2.0, 5.0, 9.0], "distinct ascending"),
    ],
)
def test_a_reduced_vocabulary_lists_ids_of_the_target(
    target: TinyTarget,
    make_model: Callable[..., Any],
    make_content: Callable[..., Any],
    damage: Any,
    tmp_path: Path,
    ids: list[Any],
    said: str,
) -> None:
    """Some of these would be drafted from without an error, as other tokens."""
    _, edit_tensors = damage
    model = make_model(target, vocab_ids=torch.tensor([2, 5, 9]), randomize=0.3)
    write_folder(tmp_path, "hf", make_content(target, model, "none"), "float32", {}, "")
    (tmp_path / "provenance.json").unlink()
    xpress_exp.load(tmp_path, target)
    edit_tensors(tmp_path, lambda t: t.update({"vocab_ids": torch.tensor(ids)}))
    refused(tmp_path, said)


@pytest.mark.parametrize(
    "change",
    [
        {"architectures": 3},
        {"dflash_config": [1]},
        {"dflash_config": {"projector_type": ["domino"]}},
        {"xpress_exp": {"target_facts": {"probe": [1.0, 2.0]}}},
        {"xpress_exp": {"target_facts": {"probe": "abc"}}},
        {"xpress_exp": {"target_facts": {"rope": [1]}}},
        {"xpress_exp": {"target_facts": {"rope": []}}},
        {"xpress_exp": {"target_facts": 3}},
        {"xpress_exp": {"num_passes": "6"}},
        {"xpress_exp": {"num_passes": -1}},
        {"num_attention_heads": -1},
        {"intermediate_size": -1},
        {"xpress_exp": [1]},
    ],
    ids=str,
)
def test_fields_of_another_kind_are_one_clear_error(
    write: Callable[..., Path], damage: Any, target: TinyTarget, change: dict[str, Any]
) -> None:
    folder, (edit, _) = write("zlab", keep=False), damage
    edit(folder, lambda config: config.update(change))
    with pytest.raises((ArtefactError, ValueError), match=r"^[^\n]*config\.json[^\n]*$"):
        xpress_exp.load(folder, target)
