"""Block-diffusion drafters."""

from xpress_exp.drafter.block_mask import block_groups, block_mask
from xpress_exp.drafter.dflash import DFlashDrafter

__all__ = ["DFlashDrafter", "block_groups", "block_mask"]
