"""Checkpoint formats that serving engines read."""

from xpress_exp.export.dflash import write_dflash
from xpress_exp.export.initial import read_drafter, read_tensors

__all__ = ["read_drafter", "read_tensors", "write_dflash"]
