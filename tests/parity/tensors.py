"""What two interpreters exchange: tensors in a safetensors file with a JSON description.

Read by our interpreter and by those of the peers, so it needs torch and safetensors only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

# A peer's answer: named tensors for the tensors and facts of a request.
Task = Callable[[dict[str, Tensor], dict[str, Any]], dict[str, Tensor]]


def write(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and facts (JSON values) to one file."""
    held = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    save_file(held, path, metadata={"facts": json.dumps(facts)})


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts of a file that `write` made."""
    with safe_open(path, "pt") as file:
        facts = json.loads(file.metadata()["facts"])
        return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118


def group(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Tensors named `prefix.<name>`, by <name>."""
    start = f"{prefix}."
    return {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `group`."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def gradients(scalar: Tensor, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gradient of a scalar in each leaf, zero where it does not depend on it."""
    found = torch.autograd.grad(scalar, list(leaves.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(leaves.items(), found, strict=True)
    }


@contextmanager
def float64_throughout() -> Iterator[None]:
    """Inside, code that asks for float32 intermediates gets float64.

    Transformers' norms and rotary angles and the peers' softmaxes are float32 whatever the model's
    dtype is, which would hide differences below 1e-7 in a float64 comparison.
    """
    single, to_single = torch.float32, torch.Tensor.float
    torch.float = torch.float32 = torch.float64  # type: ignore
    torch.Tensor.float = torch.Tensor.double  # type: ignore
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.float = torch.float32 = single  # type: ignore
        torch.Tensor.float = to_single  # type: ignore
        torch.set_default_dtype(single)


def serve(folder: Path, package: str, tasks: Mapping[str, Task]) -> None:
    """Answer every request `*.in.safetensors` of a folder beside it, in `*.out.safetensors`."""
    for path in sorted(folder.glob("*.in.safetensors")):
        tensors, facts = read(path)
        answer = tasks[facts["task"]](tensors, facts)
        name = path.name.replace(".in.", ".out.")
        write(path.with_name(name), answer, {"version": version(package)})
