"""Checkpoint formats that serving engines read."""

from xpress_exp.export.dflash import write_dflash

__all__ = ["write_dflash"]
