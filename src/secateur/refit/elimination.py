"""The order in which the units of a group are removed: one by one the unit whose removal its consumers compensate best.

A layer computes `w x`. Without the inputs R, the best refitted weights leave the error `w_R (H_RR)^-1 w_R'`, with H the
inverse of the second moments of x: the block form of the optimal brain surgeon.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateur.refit.least_squares import factor

SHRINK = 0.9  # matrices are compacted when fewer of their rows than this are left
AT_ONCE = 64  # one in 64 of the units left is removed at a time


@dataclass(frozen=True)
class Consumer:
    """A layer that consumes a group."""

    gram: Tensor  # [n, n], sum of x x' over its inputs
    weight: Tensor  # [outputs, n], each row scaled by how much its error matters
    inputs: tuple[tuple[int, ...], ...]  # for each unit its indices among the n inputs
    rows: int = 1  # that the sum is over


@dataclass(frozen=True)
class SeparateErrors:
    """A layer with too many inputs for second moments: the error of removing each unit by itself."""

    errors: Tensor  # [units]


@dataclass(frozen=True)
class Order:
    """The order of removal of the units of a group."""

    removed: tuple[int, ...]  # the last one stays
    errors: Tensor  # [units], the error after 0, 1, 2, ... are removed


def eliminate(consumers: Sequence[Consumer | SeparateErrors], ridge: float = 1e-3) -> Order:
    """Return the order in which the units of a group are removed, and the error after each.

    >>> order = eliminate([Consumer(gram, weight, inputs)])
    >>> order.removed[:3], order.errors[:4]
    """
    states = [_Additive(one) if isinstance(one, SeparateErrors) else _Refitted(one, ridge) for one in consumers]
    alive = list(range(states[0].units))
    removed: list[int] = []
    errors = [0.0]
    while len(alive) > 1:
        scores = sum((state.scores(alive) for state in states), start=torch.zeros(len(alive), dtype=torch.float64))
        count = max(1, len(alive) // AT_ONCE)
        going = [alive[i] for i in scores.argsort(stable=True)[: min(count, len(alive) - 1)].tolist()]
        added = sum((state.remove(going) for state in states), start=torch.zeros(len(going), dtype=torch.float64))
        errors += (errors[-1] + added.cumsum(0)).tolist()
        removed += going
        gone = set(going)
        alive = [unit for unit in alive if unit not in gone]
    return Order((*removed, *alive), torch.tensor(errors, dtype=torch.float64))


class _Additive:
    """A consumer whose error grows by the same amount for a unit, whatever else is removed."""

    def __init__(self, consumer: SeparateErrors) -> None:
        self.errors = consumer.errors.double()
        self.units = len(self.errors)

    def scores(self, alive: Sequence[int]) -> Tensor:
        """Return the error that removing each unit would add."""
        return self.errors[list(alive)]

    def remove(self, units: Sequence[int]) -> Tensor:
        """Remove units and return the error that each adds."""
        return self.errors[list(units)]


class _Refitted:
    """A consumer that is refitted after each removal."""

    def __init__(self, consumer: Consumer, ridge: float) -> None:
        gram = consumer.gram.to(torch.float64, copy=True).div_(consumer.rows)
        mean = float(gram.diagonal().mean())
        gram.diagonal().add_(ridge * mean if mean > 0 else 1.0)
        self.stays = torch.ones(len(gram), dtype=torch.bool)  # inputs of units that are not removed
        lower = factor(gram)
        del gram  # the largest arrays that there are
        self.inverse = torch.cholesky_inverse(lower)
        del lower
        self.weight = consumer.weight.double().clone()
        self.inputs = [torch.tensor(own, dtype=torch.int64) for own in consumer.inputs]
        self.units = len(self.inputs)
        self.widths = sorted({len(own) for own in consumer.inputs})

    def scores(self, alive: Sequence[int]) -> Tensor:
        """Return the error that removing each unit would add."""
        found = torch.zeros(len(alive), dtype=torch.float64)
        for width in self.widths:
            which = [i for i, unit in enumerate(alive) if len(self.inputs[unit]) == width]
            if not which or not width:
                continue
            own = torch.stack([self.inputs[alive[i]] for i in which])  # [units, width]
            blocks = self.inverse[own[:, :, None], own[:, None, :]]
            weights = self.weight[:, own].permute(1, 2, 0)  # [units, width, outputs]
            solved = torch.linalg.solve_triangular(factor(blocks), weights, upper=False)
            found[which] = solved.square().sum((1, 2))
        return found

    def remove(self, units: Sequence[int]) -> Tensor:
        """Remove units one after the other and return the error that each adds.

        The Cholesky factor of their joint block holds the factors that removing them one by one would take.
        """
        own = torch.cat([self.inputs[unit] for unit in units])
        widths = torch.tensor([len(self.inputs[unit]) for unit in units])
        if not len(own):
            return torch.zeros(len(units), dtype=torch.float64)
        lower = factor(self.inverse[own[:, None], own])
        share = torch.linalg.solve_triangular(lower, self.inverse[own], upper=False)  # [width, n]
        lost = torch.linalg.solve_triangular(lower, self.weight[:, own].T, upper=False)  # [width, outputs]
        self.inverse.addmm_(share.T, share, alpha=-1)
        self.weight.addmm_(lost.T, share, alpha=-1)
        self.stays[own] = False
        if int(self.stays.sum()) < SHRINK * len(self.stays):
            self._compact()
        places = torch.arange(len(units)).repeat_interleave(widths)
        return torch.zeros(len(units), dtype=torch.float64).index_add_(0, places, lost.square().sum(1))

    def _compact(self) -> None:
        """Drop the rows of removed units, which are zero by now."""
        left, new_index = self.stays.nonzero().flatten(), self.stays.cumsum(0) - 1
        self.inverse, self.weight = self.inverse[left[:, None], left], self.weight[:, left]
        self.inputs = [new_index[own] for own in self.inputs]
        self.stays = self.stays[left]
