"""What a folder of each format says: names, fields, derived numbers, files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

import xpress_exp
from xpress_exp.builders import DraftModel
from xpress_exp.export import Content, TargetFacts, expected_shapes, write_folder
from xpress_exp.formats import FORMATS, refusal
from xpress_exp.run_dir import read_json, sha256_file
from xpress_exp.target import TinyTarget

BACKBONE = {"fc.weight", "hidden_norm.weight", "norm.weight"} | {
    f"layers.{index}.{name}"
    for index in range(2)
    for name in (
        *(f"self_attn.{letter}_proj.weight" for letter in "qkvo"),
        *(f"self_attn.{letter}_norm.weight" for letter in "qk"),
        *(f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
    )
}
MARKOV = {"markov_head.markov_w1.weight", "markov_head.markov_w2.weight"}
GATE = {"markov_head.gate_proj.weight", "markov_head.gate_proj.bias"}
JOINT = {"markov_head.joint_proj.weight", "markov_head.joint_proj.bias"}
COPIES = {"embed_tokens.weight", "lm_head.weight"}
REFINER = "token_embed.weight down_h.weight down_g.weight in_proj.weight mix_l mlp_gate.weight"
REFINER += " mlp_up.weight mlp_down.weight readout.weight"
XPRESS = "w1.weight w2.weight down_h.weight down_g.weight in_proj.weight mix.L"
XPRESS += " mlp.gate_proj.weight mlp.up_proj.weight mlp.down_proj.weight"
DOMINO = "prefix_gru.weight_ih_l0 prefix_gru.weight_hh_l0 embed_proj.0.weight embed_proj.2.weight"
NAMES = [
    ("zlab", "none", "fill_in", set()),
    ("deepspec", "none", "shift", COPIES),
    ("deepspec", "markov", "fill_in", COPIES | MARKOV),
    ("deepspec", "gated", "shift", COPIES | MARKOV | GATE),
    ("deepspec", "rnn", "shift", COPIES | MARKOV | JOINT),
    ("domino", "gru", "fill_in", set(DOMINO.split())),
    ("speculators", "none", "shift", set()),
    ("speculators", "rnn", "shift", MARKOV | JOINT),
    ("speculators", "xpress", "fill_in", {f"refiner_head.{name}" for name in REFINER.split()}),
    ("vllm_xpress", "xpress", "fill_in", {f"xpress_head.{name}" for name in XPRESS.split()}),
]


@pytest.mark.parametrize(("name", "head", "convention", "own"), NAMES)
def test_tensors_have_the_published_names(
    write: Callable[..., Path], name: str, head: str, convention: str, own: set[str]
) -> None:
    folder = write(name, head, convention)
    assert set(load_file(folder / "model.safetensors")) == BACKBONE | own
    assert {path.name for path in folder.iterdir()} == {
        "README.md",
        "config.json",
        "model.safetensors",
        "provenance.json",
    }
    digest = sha256_file(folder / "model.safetensors")
    assert read_json(folder / "config.json")["xpress_exp"]["sha256"] == digest
    assert read_json(folder / "provenance.json") == {"commit": "abc", "model_sha256": digest}


# (format, head, convention, unused slots) -> number of drafts of a block of 4
COUNTS = [
    ("zlab", "none", "fill_in", 0, 3),
    ("deepspec", "markov", "shift", 0, 4),
    ("domino", "gru", "shift", 1, 3),
    ("speculators", "none", "shift", 0, 4),
    ("speculators", "xpress", "fill_in", 0, 3),
    ("vllm_xpress", "xpress", "fill_in", 0, 3),
]


@pytest.mark.parametrize(("name", "head", "convention", "unused", "count"), COUNTS)
def test_the_number_of_drafts_follows_from_block_and_convention(
    write: Callable[..., Path], name: str, head: str, convention: str, unused: int, count: int
) -> None:
    """vLLM counts block or block - 1; a typed number would be wrong for one of them."""
    config = read_json(write(name, head, convention, num_unused_slots=unused) / "config.json")
    if name == "speculators":
        [proposal] = config["speculators_config"]["proposal_methods"]
        assert proposal["speculative_tokens"] == count
        assert config["sample_from_anchor"] == (convention == "shift")
    else:
        assert config["num_speculative_tokens"] == count


@pytest.mark.parametrize(("name", "head", "convention", "_own"), NAMES)
def test_rope_stands_in_both_places(
    write: Callable[..., Path],
    target: TinyTarget,
    name: str,
    head: str,
    convention: str,
    _own: set[str],
) -> None:
    config = read_json(write(name, head, convention) / "config.json")
    layers = config["transformer_layer_config"] if name == "speculators" else config
    theta = target.config.rope_parameters["rope_theta"]
    assert layers["rope_theta"] == layers["rope_parameters"]["rope_theta"] == theta
    noted = config["xpress_exp"]["target_facts"]
    assert len(noted["tokenizer_sha256"]) == len(noted["chat_template_sha256"]) == 64


def test_layer_ids_are_counted_as_the_reader_counts(write: Callable[..., Path]) -> None:
    """Ours are [0, 1]: outputs of the first two layers."""
    assert read_json(write("zlab") / "config.json")["dflash_config"]["target_layer_ids"] == [0, 1]
    config = read_json(write("speculators") / "config.json")
    assert config["aux_hidden_state_layer_ids"] == [1, 2]


def test_dspark_fields_stand_in_both_places(write: Callable[..., Path]) -> None:
    config = read_json(write("deepspec", "gated", "shift") / "config.json")
    for key in ("target_layer_ids", "mask_token_id", "block_size", "markov_rank"):
        assert config[key] == config["dflash_config"][key]
    assert config["architectures"] == ["Qwen3DSparkModel"]
    assert config["markov_head_type"] == "gated" and config["markov_rank"] == 6
    assert config["num_anchors"] and config["enable_confidence_head"] is False


def test_domino_says_its_sizes_where_sglang_compares_them(write: Callable[..., Path]) -> None:
    config = read_json(write("domino", "gru", "shift", num_unused_slots=1) / "config.json")
    assert config["emb_dim"] == config["dflash_config"]["emb_dim"] == 6
    assert config["dflash_config"]["projector_type"] == "domino"
    assert config["dflash_config"]["shift_label"] is True
    assert config["dflash_config"]["gru_hidden_dim"] == 8


def markov_delta(at: dict[str, Tensor], _hidden: Tensor, tokens: Tensor) -> Tensor:
    """DSpark, vanilla: W2 W1[previous]."""
    return at["markov_head.markov_w1.weight"][tokens] @ at["markov_head.markov_w2.weight"].T


def domino_delta(at: dict[str, Tensor], hidden: Tensor, tokens: Tensor) -> Tensor:
    """Domino: W_out silu(W_mid [h ; GRU state]) from the second draft on (slot 2 of fill_in)."""
    gru = torch.nn.GRU(32, 8, bias=False, batch_first=True)
    gru.weight_ih_l0.data, gru.weight_hh_l0.data = (
        at[f"prefix_gru.weight_{kind}_l0"] for kind in ("ih", "hh")
    )
    states, _ = gru(at["embed_tokens"][tokens[:, 1:]])
    mid = torch.cat([hidden[:, 2:], states[:, 1:]], -1) @ at["embed_proj.0.weight"].T
    delta = functional.silu(mid) @ at["embed_proj.2.weight"].T
    return torch.cat([torch.zeros(2, 2, 64), delta], 1)


def refiner_delta(names: str, prefix: str) -> Callable[..., Tensor]:
    """The authors' refiner, names in the order w1 h g in mix gate up down w2."""

    def delta(at: dict[str, Tensor], hidden: Tensor, tokens: Tensor) -> Tensor:
        w1, h, g, fuse, mix, gate, up, down, w2 = (at[prefix + name] for name in names.split())
        mean = hidden.mean(1, keepdim=True).expand_as(hidden)
        a = torch.cat([hidden @ h.T, mean @ g.T, w1[tokens]], -1) @ fuse.T
        c = a.clone()
        for k in range(4):
            for j in range(k + 1):
                c[:, k] += mix[:, k, j] * a[:, j]
        return (c + (functional.silu(c @ gate.T) * (c @ up.T)) @ down.T) @ w2.T

    return delta


VLLM = "w1.weight down_h.weight down_g.weight in_proj.weight mix.L mlp.gate_proj.weight "
VLLM += "mlp.up_proj.weight mlp.down_proj.weight w2.weight"
FORMULAS = [
    ("deepspec", "markov", "shift", markov_delta),
    ("speculators", "markov", "fill_in", markov_delta),
    ("domino", "gru", "fill_in", domino_delta),
    ("speculators", "xpress", "shift", refiner_delta(REFINER, "refiner_head.")),
    ("vllm_xpress", "xpress", "fill_in", refiner_delta(VLLM, "xpress_head.")),
]


@pytest.mark.parametrize(("name", "head", "convention", "formula"), FORMULAS)
def test_the_published_formula_on_the_published_names_is_our_head(
    write: Callable[..., Path],
    target: TinyTarget,
    name: str,
    head: str,
    convention: str,
    formula: Callable[..., Tensor],
) -> None:
    """Two matrices of one shape under each other's names would load without complaint."""
    folder = write(name, head, convention)
    tensors = {
        **load_file(folder / "model.safetensors"),
        "embed_tokens": target.embedding,
    }
    ours = xpress_exp.load(folder, target).model.head
    torch.manual_seed(3)
    hidden, tokens = torch.randn(2, 4, 32), torch.randint(64, (2, 4))
    with torch.no_grad():
        expected = formula(tensors, hidden, tokens)
        found = ours.correct(torch.zeros(2, 4, 64), ours.code(hidden, tokens))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "mixer"), [("speculators", "refiner_head.mix_l"), ("vllm_xpress", "xpress_head.mix.L")]
)
def test_a_strict_mixer_gets_a_zero_diagonal(
    write: Callable[..., Path], name: str, mixer: str
) -> None:
    """These layouts read the diagonal; what training left there must not come to life."""
    mix = load_file(write(name, "xpress") / "model.safetensors")[mixer]
    assert torch.equal(mix, mix.tril(-1)) and mix.any()


def test_full_size_has_the_published_number_of_tensors() -> None:
    """z-lab/Qwen3-8B-DFlash-b16: 58 tensors; sizes from its config.json, no weights needed."""
    drafter = {
        "num_layers": 5,
        "intermediate_size": 12288,
        "num_heads": 32,
        "num_kv_heads": 8,
        "head_dim": 128,
        "block_size": 16,
        "slot_convention": "fill_in",
        "num_unused_slots": 0,
        "target_layer_ids": [1, 9, 17, 25, 33],
        "mask_token_id": 151669,
    }
    content = Content(drafter, {"name": "none"}, TargetFacts(hidden_size=4096, vocab_size=151936))
    shapes = expected_shapes(content)
    assert len(shapes) == 58
    assert shapes["drafter.fc.weight"] == (4096, 5 * 4096)
    assert shapes["drafter.layers.4.self_attn.k_proj.weight"] == (1024, 4096)
    assert shapes["drafter.layers.0.self_attn.q_norm.weight"] == (128,)
    # 5 x 192.9 M + 83.9 M
    assert sum(shape.numel() for shape in shapes.values()) == 1_048_626_432
    head = {"name": "xpress", "rank": 256, "mix": "inclusive", "mlp": "swiglu"}
    shapes = expected_shapes(dataclasses.replace(content, head=head))
    numbers = sum(shape.numel() for name, shape in shapes.items() if name.startswith("head."))
    assert numbers == 80_543_744  # 38,895,616 x 2 + 1,048,576 x 2 + 196,608 + 65,536 + 393,216


def test_weights_beyond_the_dtype_are_refused(
    target: TinyTarget,
    make_model: Callable[..., DraftModel],
    make_content: Callable[..., Content],
    tmp_path: Path,
) -> None:
    model = make_model(target, randomize=0.3)
    content = make_content(target, model, "none")
    state = {**model.state_dict(), "drafter.fc.weight": torch.full((2, 2), 1e6)}
    content = dataclasses.replace(content, tensors=state)
    with pytest.raises(ValueError, match=r"fc\.weight does not fit export\.dtype=float16"):
        write_folder(tmp_path, "zlab", content, "float16", {}, "")
    assert not (tmp_path / "model.safetensors").exists()


FILL = {
    "slot_convention": "fill_in",
    "num_unused_slots": 0,
    "mask_token_id": 3,
    "draft_vocab": None,
}
SHIFT = {**FILL, "slot_convention": "shift"}
NONE, GRU = {"name": "none"}, {"name": "gru"}
XPRESS_HEAD = {"name": "xpress", "mlp": "swiglu"}
SILU = {"name": "xpress", "mlp": "silu"}
# format -> what it must refuse: drafter, head, how the line begins
REFUSED = [
    ("zlab", FILL, XPRESS_HEAD, "head.name=xpress: export=zlab holds only none; use export=hf or"),
    ("zlab", SHIFT, NONE, "drafter.slot_convention=shift: export=zlab holds only fill_in"),
    ("zlab", {**FILL, "mask_token_id": None}, NONE, "drafter.mask_token_id=None"),
    ("zlab", {**FILL, "draft_vocab": "ids"}, NONE, "drafter.draft_vocab=ids"),
    ("deepspec", FILL, NONE, "drafter.slot_convention=fill_in"),
    ("deepspec", FILL, {"name": "markov", "variant": "gated"}, "head.variant=gated"),
    ("deepspec", SHIFT, GRU, "head.name=gru"),
    ("deepspec", {**SHIFT, "num_unused_slots": 1}, NONE, "drafter.num_unused_slots=1"),
    ("domino", SHIFT, GRU, "drafter.num_unused_slots=0: export=domino holds only fill_in or shift"),
    ("domino", FILL, NONE, "head.name=none"),
    ("speculators", FILL, GRU, "head.name=gru"),
    ("speculators", FILL, SILU, "head.mlp=silu: export=speculators has a refiner of three"),
    ("speculators", FILL, {"name": "markov", "variant": "rnn"}, "head.variant=rnn"),
    ("speculators", {**FILL, "mask_token_id": None}, NONE, "drafter.mask_token_id=None"),
    ("vllm_xpress", FILL, SILU, "head.mlp=silu: export=vllm_xpress has a refiner of three"),
    ("vllm_xpress", SHIFT, XPRESS_HEAD, "drafter.slot_convention=shift"),
    ("vllm_xpress", FILL, NONE, "head.name=none"),
    ("vllm_xpress", {**FILL, "draft_vocab": "ids"}, XPRESS_HEAD, "drafter.draft_vocab=ids"),
]


@pytest.mark.parametrize(("name", "drafter", "head", "line"), REFUSED)
def test_what_has_no_place_is_refused_by_name(
    name: str, drafter: dict[str, object], head: dict[str, object], line: str
) -> None:
    told = refusal(name, drafter, head)
    assert told is not None and told.startswith(line) and "\n" not in told
    # What it recommends must take it.
    for other in told.rpartition("use export=")[2].split(" or "):
        assert refusal(other, drafter, head) is None
    assert set(FORMATS) >= {name}
