"""Parts of a sum that have few rows each: together they are much cheaper to add to a large matrix."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import torch
from torch import Tensor

ROWS_PER_INPUT = 8  # that are enough: the products then take far more time than adding them to the sum
MOST = 32 << 20  # bytes that may wait


@dataclass
class Pending:
    """Tensors that wait to be added.

    >>> if pending.put(rows, 576, x, gap):
    ...     x, gap = pending.take(dim=0)
    """

    most: int = MOST  # bytes
    kind: Hashable = None  # of what waits; only parts of one kind can be joined
    rows: int = 0
    bytes: int = 0
    parts: list[tuple[Tensor, ...]] = field(default_factory=list)

    def put(self, rows: int, inputs: int, *tensors: Tensor) -> bool:
        """Let tensors wait, and return whether those that do are enough to be added.

        Args:
            rows: in these tensors.
            inputs: the size of the matrix that they are added to.
        """
        enough = rows >= ROWS_PER_INPUT * inputs
        waiting = tensors if enough else tuple(one.clone() for one in tensors)  # the network may write to them
        self.parts.append(waiting)
        self.rows += rows
        self.bytes += sum(one.nbytes for one in waiting)
        return self.rows >= ROWS_PER_INPUT * inputs or self.bytes >= self.most

    def take(self, dim: int) -> tuple[Tensor, ...]:
        """Return all that waits, joined along an axis; then nothing does."""
        parts, self.parts, self.rows, self.bytes = self.parts, [], 0, 0
        return parts[0] if len(parts) == 1 else tuple(torch.cat(one, dim) for one in zip(*parts, strict=True))
