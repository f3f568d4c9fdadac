"""Points to draw from: several samples of the same data, and some points held apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from secateur.batches import Call, batch_size
from secateur.errors import SecateurError, UsageError
from secateur.program import first_line
from secateur.sensitivity import no_data

Pair = tuple[Call, Tensor | None]  # a batch and its labels


@dataclass(frozen=True)
class Pool:
    """All points of the data that may be used, as batches with their labels."""

    pairs: list[Pair]
    _merged: list[Any] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        if not self.pairs:
            raise no_data()

    def __len__(self) -> int:
        return sum(batch_size(call) for call, _ in self.pairs)

    @property
    def labelled(self) -> bool:
        """Whether every batch has labels."""
        return all(labels is not None for _, labels in self.pairs)

    def parts(self, points: int, draws: int, held: int, seed: int) -> tuple[list[int], list[list[int]]]:
        """Which points are held apart, and which each draw has: other ones while there are enough.

        >>> pool.parts(points=256, draws=3, held=0, seed=0)[1]
        """
        held = min(held, len(self) // 4)
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed)).tolist()
        apart, rest = order[:held], order[held:]
        size = min(points, len(rest))
        if draws > 1 and size == len(rest):
            raise UsageError(
                f"{size} points are left to measure on, and every draw of {points} has all of them",
                layer="data",
                remedy="give more data, or ask for fewer points or for one draw",
            )
        if draws * size <= len(rest):
            return apart, [rest[i * size : (i + 1) * size] for i in range(draws)]
        sources = [torch.Generator().manual_seed(seed + draw) for draw in range(draws)]
        return apart, [[rest[i] for i in torch.randperm(len(rest), generator=s)[:size].tolist()] for s in sources]

    def some(self, which: Sequence[int]) -> list[Pair]:
        """These points, in batches as large as the first one is; all of them in the batches and the order they have."""
        if len(which) == len(self):
            return self.pairs
        if not self._merged:
            self._merged.append(self._merge())
        size, whole = batch_size(self.pairs[0][0]), len(self)
        return [_picked(self._merged[0], part, whole) for part in torch.tensor(which, dtype=torch.long).split(size)]

    def _merge(self) -> Any:
        sizes = [batch_size(call) for call, _ in self.pairs]

        def joined(*leaves: Any) -> Any:
            if all(isinstance(x, Tensor) and x.dim() and len(x) == size for x, size in zip(leaves, sizes)):
                return torch.cat(leaves)
            return None if any(leaf is None for leaf in leaves) else leaves[0]

        try:
            return pytree.tree_map(joined, *self.pairs)
        except (RuntimeError, ValueError) as error:
            raise SecateurError(
                f"points of different batches cannot be mixed: {first_line(error)}",
                layer="data",
                remedy="give batches of one shape; or as many points as are asked for, one draw, and labelled data",
            ) from error


def _picked(tree: Any, which: Tensor, size: int) -> Any:
    return pytree.tree_map(
        lambda x: x[which.to(x.device)] if isinstance(x, Tensor) and x.dim() and len(x) == size else x, tree
    )
