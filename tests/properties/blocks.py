"""Blocks to compose random networks of: each a small plain module that turns (N, C, ...) into (N, C', ...).

A block is made from the shape it will see (without the batch), a width and an option; the option, 0 to 7, picks its
variant. Some read their sizes from the input, some have them written in, as people do.
"""

from __future__ import annotations

import layers
import wirings
from parts import BLOCKS, DIMS

__all__ = ["BLOCKS", "DIMS", "layers", "wirings"]
