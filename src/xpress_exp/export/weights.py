"""Tensors from disk: safetensors, and `.pt` files of training runs, never a free pickle."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from xpress_exp.run_dir import ArtefactError

LENGTH_BYTES = 8
# First bytes of zipped (torch >= 1.6) and bare pickles.
PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def read_tensors(file: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, on the CPU; raises ArtefactError naming it when it is
    missing, cut short, no safetensors file, or holds a value that is not finite."""
    if not file.is_file():
        raise ArtefactError(f"{file} is missing; give a folder with its weights as safetensors")
    _refuse_pickle(file)
    try:
        tensors = load_file(file)
    except (SafetensorError, OSError) as error:
        raise ArtefactError(f"{file} cannot be read ({error}); fetch or write it again") from error
    return check_finite(tensors, file)


def check_finite(tensors: dict[str, Tensor], file: Path) -> dict[str, Tensor]:
    """The tensors; raises ArtefactError naming the first with NaN or infinity."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ArtefactError(f"{file}: {name} holds NaN or infinity; fetch or train it again")
    return tensors


def _refuse_pickle(file: Path) -> None:
    """Raise ArtefactError for a pickle, which safetensors would call a damaged header."""
    with file.open("rb") as stream:
        start = stream.read(LENGTH_BYTES)
    # A sound header may start with these bytes as well: its length, little-endian.
    is_header = int.from_bytes(start, "little") < file.stat().st_size
    if start.startswith(PICKLES) and not is_header:
        raise ArtefactError(
            f"{file} is a pickle under a safetensors name and was not opened; convert it where "
            "you trust it and give safetensors"
        )


def read_pickle(file: Path) -> dict[str, Any]:
    """Content of a `.pt` file of tensors, numbers and an argparse namespace, nothing else.

    Loaded with weights_only: no code of the file runs. Raises ArtefactError for any other file.
    """
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # damage shows as a KeyError, UnicodeDecodeError or any other
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ArtefactError(
            f"{file} holds more than weights, or is damaged ({reason}); it was not executed"
        ) from error
    if not isinstance(content, dict):
        raise ArtefactError(f"{file} is no training checkpoint (a {type(content).__name__})")
    return content
