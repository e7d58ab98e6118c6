"""Losslessness at temperature 0 (P7): speculative greedy decoding equals plain greedy decoding,
token for token, on tiny float64 targets, for every head, solver and slot convention."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from xpress_exp.builders import DraftModel
from xpress_exp.decode import decode_autoregressive, decode_speculative, random_stream
from xpress_exp.drafter import DFlashDrafter
from xpress_exp.head import CorrectionHead, GRUHead, MarkovHead, NoHead, XPressHead
from xpress_exp.solver import BlockState, JacobiSolver, ParallelSolver, SequentialSolver, Solver
from xpress_exp.target import TinyTarget, tiny_target
from xpress_exp.types import ModelDims, Proposal, SampleTrace, SlotConvention, SlotMap
from xpress_exp.verifier import DeltaVerifier, RejectionVerifier

VOCAB = 14
SLOTS = {
    "fill_in": SlotMap(SlotConvention.FILL_IN, 5),
    "shift": SlotMap(SlotConvention.SHIFT, 4),
    "shift_unused": SlotMap(SlotConvention.SHIFT, 5, 1),
}
HEADS = ("none", "markov", "markov_gated", "markov_rnn", "gru", "xpress", "xpress_predecessor")
SOLVERS: dict[str, Solver] = {
    "parallel": ParallelSolver(),
    "sequential": SequentialSolver(),
    "jacobi0": JacobiSolver(0),
    "jacobi2": JacobiSolver(2),
    "jacobi9": JacobiSolver(9),
    "jacobi_never": JacobiSolver(3, stop="never", seed="argmax"),
}
PROMPTS: Mapping[str, list[int]] = {"one token": [7], "longer": [5, 9, 4, 13, 6, 6, 8]}


@functools.cache
def target_of(family: str) -> TinyTarget:
    return tiny_target(family, vocab_size=VOCAB, dtype=torch.float64, seed=3, scale=8.0)


def make_head(name: str, dims: ModelDims, embedding: torch.Tensor) -> CorrectionHead:
    kind, _, option = name.partition("_")
    if kind == "none":
        return NoHead(dims, embedding)
    if kind == "markov":
        return MarkovHead(dims, embedding, rank=4, variant=option or "vanilla")  # type: ignore[arg-type]
    if kind == "gru":
        return GRUHead(dims, embedding, rank=4, gru_hidden_size=6)
    return XPressHead(dims, embedding, rank=4, anchor_prev=option or "anchor")  # type: ignore[arg-type]


def make_model(
    target: TinyTarget, slots: SlotMap, head: str, vocab_ids: torch.Tensor | None = None
) -> DraftModel:
    size = VOCAB if vocab_ids is None else len(vocab_ids)
    dims = ModelDims(target.hidden_size, VOCAB, size, slots)
    torch.manual_seed(1)
    drafter = DFlashDrafter(
        dims,
        feature_size=target.feature_size,
        token_embedding=target.embedding,
        rope_inv_freq=target.rope_inv_freq,
        rope_scale=target.rope_scale,
        num_layers=1,
        intermediate_size=16,
        num_heads=2,
        num_kv_heads=1,
        head_dim=2 * len(target.rope_inv_freq),
        mask_token_id=3,
    )
    model = DraftModel(
        drafter, make_head(head, dims, target.embedding), target.lm_head, vocab_ids
    ).double()
    # Heads start as no correction at all; these must correct, and wrongly.
    for parameter in model.head.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    model.eval().requires_grad_(False)
    model.refold()
    return model


@functools.cache
def plain(family: str, prompt: str, limit: int) -> SampleTrace:
    return decode_autoregressive(
        target_of(family), PROMPTS[prompt], temperature=0.0, max_new_tokens=limit, generator=None
    )


class Hinted:
    """A solver whose first 0, 1, .., N drafts, in turn over the rounds, are put right: a random
    drafter alone would almost never be accepted. Refined tokens stay those of `inner`."""

    def __init__(self, inner: Solver, text: tuple[int, ...]) -> None:
        self.inner, self.text = inner, text
        self.place, self.turn = 1, 0

    def propose(
        self,
        block: BlockState,
        head: CorrectionHead,
        temperature: float,
        generator: torch.Generator | None,
    ) -> Proposal:
        proposal = self.inner.propose(block, head, temperature, generator)
        tokens = proposal.tokens.clone()
        count = tokens.shape[1]
        truth = (*self.text, *[-1] * count)[self.place : self.place + count]
        right = [token for token in truth[: self.turn % (count + 1)] if token >= 0]
        tokens[0, : len(right)] = torch.tensor(right, dtype=torch.int64)
        matches = [int(a == b) for a, b in zip(tokens[0].tolist(), truth, strict=True)]
        self.place += (*matches, 0).index(0) + 1
        self.turn += 1
        return replace(proposal, tokens=tokens)


def speculative(
    family: str, model: DraftModel, solver: Solver, prompt: str, limit: int
) -> SampleTrace:
    return decode_speculative(
        target_of(family),
        model,
        Hinted(solver, plain(family, prompt, 24).tokens),
        RejectionVerifier(),
        PROMPTS[prompt],
        temperature=0.0,
        draft_temperature=0.0,
        max_new_tokens=limit,
        generator=None,
    )


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("slots", SLOTS)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_every_solver_equals_plain_greedy(family: str, slots: str, head: str) -> None:
    model = make_model(target_of(family), SLOTS[slots], head)
    for name, solver in SOLVERS.items():
        for prompt in PROMPTS:
            expected = plain(family, prompt, 18)
            found = speculative(family, model, solver, prompt, 18)
            assert found.tokens == expected.tokens, (name, prompt)
            assert found.finish_reason == expected.finish_reason
            assert found.num_decoded == sum(item.committed for item in found.rounds)
            hinted = enumerate(item.accepted for item in found.rounds[:3])
            assert all(accepted >= count for count, accepted in hinted)


@pytest.mark.parametrize("stop", [5, 9, 8])
def test_stop_tokens_inside_the_block(monkeypatch: pytest.MonkeyPatch, stop: int) -> None:
    target = target_of("llama")
    model = make_model(target, SLOTS["fill_in"], "markov")
    text = plain("llama", "longer", 18).tokens
    monkeypatch.setattr(target, "stop_token_ids", frozenset({stop}))
    found = speculative("llama", model, SOLVERS["sequential"], "longer", 18)
    assert found.tokens == text[: text.index(stop) + 1]
    assert found.finish_reason == "stop"


@pytest.mark.parametrize("limit", [1, 2, 4, 5, 6])  # 1, 2, N, N+1, N+2
def test_limits_around_the_block(limit: int) -> None:
    model = make_model(target_of("llama"), SLOTS["fill_in"], "xpress")
    for prompt in PROMPTS:
        found = speculative("llama", model, SOLVERS["jacobi2"], prompt, limit)
        assert found.tokens == plain("llama", prompt, limit).tokens
        assert len(found.tokens) <= limit


def test_reduced_draft_vocabulary_stays_lossless() -> None:
    vocab_ids = torch.tensor([2, 4, 5, 7, 8, 11])
    model = make_model(target_of("qwen3"), SLOTS["fill_in"], "markov", vocab_ids)
    for solver in SOLVERS.values():
        found = speculative("qwen3", model, solver, "longer", 18)
        assert found.tokens == plain("qwen3", "longer", 18).tokens


@pytest.mark.parametrize("sampled", [True, False])
def test_sampling_depends_on_the_stream_only(sampled: bool) -> None:
    target = target_of("llama")
    model = make_model(target, SLOTS["shift"], "xpress")

    def decode(key: int) -> tuple[int, ...]:
        return decode_speculative(
            target,
            model,
            SOLVERS["jacobi2"],
            RejectionVerifier() if sampled else DeltaVerifier(),
            PROMPTS["longer"],
            temperature=1.0,
            draft_temperature=1.0 if sampled else 0.0,
            max_new_tokens=12,
            generator=random_stream(target.device, key),
        ).tokens

    assert decode(0) == decode(0)
    assert len({decode(key) for key in range(4)}) > 1
