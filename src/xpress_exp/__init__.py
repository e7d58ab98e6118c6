"""Train and compare correction heads for block-diffusion drafters."""

__version__ = "0.1.0"
