"""Train and compare correction heads for block-diffusion drafters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xpress_exp.speculator import Speculator

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def load(path: Any, target: Any = "smollm2", solver: Any = None) -> Speculator:
    """A trained drafter with its head, and `generate`; see `xpress_exp.speculator.load`."""
    # Here, not above: the package must import without torch.
    from xpress_exp import speculator

    return speculator.load(path, target, solver)
