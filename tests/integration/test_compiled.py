"""What runs as captured graphs on CUDA holds no data-dependent Python, and drafts the same.

`fullgraph=True` refuses every graph break; the backend that traces without generating code keeps
this fast on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from xpress_exp.builders import DraftModel
from xpress_exp.few_rows import LayoutChoice
from xpress_exp.kv_cache import FixedRoom, KVCache
from xpress_exp.solver import (
    BlockState,
    CompiledSolver,
    JacobiSolver,
    SequentialSolver,
    Solver,
)
from xpress_exp.target import TinyTarget, tiny_target

TRACED: dict[str, Any] = {"fullgraph": True, "backend": "aot_eager"}
SOLVERS: dict[str, Solver] = {
    "jacobi": JacobiSolver(3),
    "last": JacobiSolver(3, noise="last"),
    "sequential": SequentialSolver(),
}


@pytest.fixture(autouse=True)
def fresh_graphs() -> None:
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def target() -> TinyTarget:
    made = tiny_target("qwen3", dtype="float64")
    made.make_fast(LayoutChoice())
    return made


@pytest.mark.parametrize("name", list(SOLVERS))
@pytest.mark.parametrize("head", ["xpress", "markov", "gated", "rnn", "gru"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@torch.inference_mode()
def test_solvers_are_one_graph(
    target: TinyTarget,
    make_model: Callable[..., DraftModel],
    name: str,
    head: str,
    temperature: float,
) -> None:
    model = make_model(target, head, randomize=0.3)
    model.make_fast(LayoutChoice())
    compiled = CompiledSolver(SOLVERS[name], mode=None, backend="aot_eager")
    for seed in (1, 2):  # the second call goes through the graph of the first
        torch.manual_seed(seed)
        block = BlockState(
            base_logits=torch.randn(2, 3, target.vocab_size, dtype=torch.float64),
            hidden=torch.randn(2, 4, target.hidden_size, dtype=torch.float64),
            anchor=torch.tensor([5, 9]),
            anchor_previous=torch.tensor([7, 4]),
            slots=model.slots,
        )
        draws = [torch.Generator().manual_seed(seed) for _ in range(2)]
        plain = SOLVERS[name].propose(block, model.head, temperature, draws[0])
        found = compiled.propose(block, model.head, temperature, draws[1])
        assert torch.equal(found.tokens, plain.tokens)
        assert (found.logits is None) == (plain.logits is None)
        if plain.logits is not None and found.logits is not None:
            torch.testing.assert_close(found.logits, plain.logits)


def test_fresh_noise_is_refused() -> None:
    with pytest.raises(ValueError, match=r"solver\.noise=fresh"):
        CompiledSolver(JacobiSolver(2, noise="fresh"))


@torch.inference_mode()
def test_target_and_drafter_passes_are_one_graph_each(
    target: TinyTarget, make_model: Callable[..., DraftModel]
) -> None:
    model = make_model(target, "none", randomize=0.2)
    decoder = target._fused
    assert decoder is not None
    caches = [target.new_decode_cache(2) for _ in range(2)]
    contexts = [model.drafter.new_cache(2) for _ in range(2)]

    def verify(ids: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        assert isinstance(caches[1], KVCache)
        return decoder.run(ids, FixedRoom(caches[1], starts, ids.shape[1]), (0,))[0]

    def draft(anchor: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        room = FixedRoom(contexts[1], starts, model.slots.block_size)
        return model.drafter.draft_in(room, anchor)

    graphs = [torch.compile(work, **TRACED) for work in (verify, draft)]
    generator = torch.Generator().manual_seed(0)
    for counts in ([4, 4], [1, 3], [2, 4]):
        starts = torch.tensor(caches[0].lengths)  # type: ignore[union-attr]
        ids = torch.randint(4, 64, (2, 4), generator=generator)
        expected = target.forward(ids, caches[0])
        torch.testing.assert_close(graphs[0](ids, starts), expected.last_hidden)
        lengths = [start + count for start, count in zip(starts.tolist(), counts, strict=True)]
        caches[0].crop(lengths)  # type: ignore[arg-type]
        for context in contexts:
            model.drafter.extend(context, expected.features, counts)
        anchor = ids[:, -1]
        held = torch.tensor(contexts[0].lengths)
        torch.testing.assert_close(
            graphs[1](anchor, held), model.drafter.draft(contexts[0], anchor)
        )
