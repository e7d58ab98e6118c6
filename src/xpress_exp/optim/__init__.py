"""Optimizers and their schedules."""

from xpress_exp.optim.adamw_cosine import AdamWCosine

__all__ = ["AdamWCosine"]
