"""Block-diffusion drafters."""

from xpress_exp.drafter.block_mask import block_mask
from xpress_exp.drafter.cache import DraftCache
from xpress_exp.drafter.dflash import DFlashDrafter

__all__ = ["DFlashDrafter", "DraftCache", "block_mask"]
