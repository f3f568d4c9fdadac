"""Blocks of random networks: each is a small module that turns (N, C, ...) into (N, C', ...).

A block is made from the shape of its input (without the batch), a width and an option from 0 to 7 that selects a
variant. Some take their sizes from the input, others have hard-coded sizes, as user code does.
"""

from __future__ import annotations

from support.networks import branches, convolutions, movements, norms_and_gates
from support.networks.parts import BLOCKS, DIMS

__all__ = ["BLOCKS", "DIMS", "branches", "convolutions", "movements", "norms_and_gates"]
