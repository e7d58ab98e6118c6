"""Loss over the vocabulary in chunks: peak memory does not grow with anchors x vocabulary.

Gradients are taken chunk by chunk during the forward pass, while a chunk's logits still exist, and
scaled in the backward pass. Nothing is computed twice, unlike with checkpointing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# (hidden of the chunk's blocks, slice of blocks) -> (numerator with gradient, detached statistics)
ChunkLoss = Callable[[Tensor, slice], tuple[Tensor, dict[str, Tensor]]]


def chunked_loss(
    chunk_loss: ChunkLoss, hidden: Tensor, parameters: Sequence[Tensor], chunk_blocks: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum `chunk_loss` over blocks of hidden [n, P, H], `chunk_blocks` at a time.

    `parameters` are the tensors besides `hidden` that the loss depends on. Returns the scalar
    numerator, differentiable once in `hidden` and `parameters`, and the summed statistics.
    """
    needs_grad = [parameter for parameter in parameters if parameter.requires_grad]
    statistics: dict[str, Tensor] = {}

    def run(chunk: Tensor, blocks: slice) -> Tensor:
        loss, new = chunk_loss(chunk, blocks)
        for name, value in new.items():
            statistics[name] = statistics[name] + value if name in statistics else value
        return loss

    if not torch.is_grad_enabled():
        total = sum(run(hidden[part], part) for part in slices(len(hidden), chunk_blocks))
        assert isinstance(total, Tensor)
        return total, statistics
    total = _ChunkedLoss.apply(run, chunk_blocks, hidden, *needs_grad)
    return total, statistics  # type: ignore[return-value]


def slices(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        run: Callable[[Tensor, slice], Tensor],
        chunk_blocks: int,
        hidden: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        total = hidden.new_zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32))
        hidden_grad = torch.zeros_like(hidden)
        # Own buffers: autograd may return expanded or shared tensors, which cannot be added to. A
        # term of weight zero still yields a zero gradient: DDP expects one for every parameter.
        parameter_grads = [torch.zeros_like(parameter) for parameter in parameters]
        for part in slices(len(hidden), chunk_blocks):
            with torch.enable_grad():
                chunk = hidden[part].detach().requires_grad_(hidden.requires_grad)
                loss = run(chunk, part)
                sources = [chunk, *parameters] if hidden.requires_grad else list(parameters)
                grads = list(torch.autograd.grad(loss, sources, allow_unused=True))
            if hidden.requires_grad:
                first = grads.pop(0)
                if first is not None:
                    hidden_grad[part] = first
            for held, grad in zip(parameter_grads, grads, strict=True):
                if grad is not None:
                    held += grad
            total += loss.detach()
        ctx.save_for_backward(hidden_grad, *parameter_grads)
        return total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        (grad,) = grad_outputs
        return (None, None, *(saved * grad for saved in ctx.saved_tensors))
