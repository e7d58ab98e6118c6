"""HFTarget from a local folder, and the one-line refusal of everything else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from xpress_exp.target import HFTarget

MESSAGES = [{"role": "user", "content": "red blue"}]


def test_local_folder(model_folder: Path, plain_llama: LlamaForCausalLM) -> None:
    target = HFTarget(str(model_folder), (0, 1), vocab_size=8, stop_token_ids=[2])
    ids = torch.tensor([[5, 6, 4]])
    with torch.no_grad():
        expected = plain_llama(ids).logits
    found = target.forward(ids).logits
    assert found is not None
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(target.lm_head, plain_llama.lm_head.weight.detach())
    assert target.stop_token_ids == {2} and target.pad_token_id == 0
    # "user : red blue assistant :"
    assert target.encode_chat(MESSAGES) == [3, 7, 5, 6, 4, 7]
    assert target.decode_text([5, 6, 2]) == "red blue"


def test_identity_follows_weights_and_template(model_folder: Path) -> None:
    first = HFTarget(str(model_folder), (0, 1)).identity
    assert HFTarget(str(model_folder), (0,)).identity == first
    template = model_folder / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    other_template = HFTarget(str(model_folder), (0, 1)).identity
    assert other_template["weights_sha256"] == first["weights_sha256"]
    assert other_template["chat_template_sha256"] != first["chat_template_sha256"]
    model = LlamaForCausalLM.from_pretrained(model_folder)
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    model.save_pretrained(model_folder)
    changed = HFTarget(str(model_folder), (0, 1)).identity
    assert changed["weights_sha256"] != first["weights_sha256"]


def test_dtype(model_folder: Path) -> None:
    target = HFTarget(str(model_folder), (0, 1), dtype="bfloat16")
    assert target.dtype == torch.bfloat16 and target.rope_inv_freq.dtype == torch.float32
    logits = target.forward(torch.tensor([[5, 6]])).logits
    assert logits is not None and logits.dtype == torch.float32


@pytest.mark.parametrize("name", ["/no/such/folder", "no-such-model", "../elsewhere"])
def test_unknown_names_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(ValueError, match=r"^target\.name_or_path='[^\n]*cannot be loaded[^\n]*$"):
        HFTarget(name, (0,))


@pytest.mark.parametrize("broken", ["tokenizer", "weights"])
def test_broken_folders_are_refused_in_one_line(model_folder: Path, broken: str) -> None:
    if broken == "tokenizer":
        for file in model_folder.glob("tokenizer*"):
            file.unlink()
    else:
        (model_folder / "model.safetensors").write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"^target\.name_or_path='[^\n]*cannot be loaded[^\n]*$"):
        HFTarget(str(model_folder), (0,))
