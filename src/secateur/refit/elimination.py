"""The order in which the units of a group are removed: one by one the unit whose removal its consumers compensate best.

A layer computes `w x`. Without the inputs R, the best refitted weights leave the error `w_R (H_RR)^-1 w_R'`, with H the
inverse of the second moments of x: the block form of the optimal brain surgeon.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateur.network.precision import at_least_float32
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
    """A consumer that is refitted after each removal.

    Its inputs are in another order: those of one unit side by side, units with as many inputs side by side, and last
    those of no unit. It computes in the precision of the second moments.
    """

    def __init__(self, consumer: Consumer, ridge: float) -> None:
        widths = [len(own) for own in consumer.inputs]
        self.units = len(widths)
        self.widths = sorted({width for width in widths if width})
        self.members = {width: [unit for unit, own in enumerate(widths) if own == width] for width in self.widths}
        self.rows: list[Tensor] = [torch.empty(0, dtype=torch.int64)] * self.units  # of each unit that is left
        order = [i for width in self.widths for unit in self.members[width] for i in consumer.inputs[unit]]
        taken = set(order)
        self.others = [i for i in range(len(consumer.gram)) if i not in taken]
        index = torch.tensor([*order, *self.others], dtype=torch.int64)
        gram = at_least_float32(consumer.gram)[index[:, None], index].div_(consumer.rows)
        mean = float(gram.diagonal().mean())
        gram.diagonal().add_(ridge * mean if mean > 0 else 1.0)
        lower = factor(gram)
        del gram  # the largest arrays that there are
        self.inverse = torch.cholesky_inverse(lower)
        del lower
        self.weight = consumer.weight.T[index].to(self.inverse.dtype)  # [inputs, outputs]
        self.gone: set[int] = set()
        self.removed_rows = 0  # since the last time that rows were dropped
        self._count_rows()

    def _count_rows(self) -> None:
        """Set which rows each unit has."""
        first = 0
        for width in self.widths:
            for unit in self.members[width]:
                self.rows[unit] = torch.arange(first, first + width)
                first += width

    def scores(self, alive: Sequence[int]) -> Tensor:
        """Return the error that removing each unit would add: the trace of W' W times the inverse of its block of H."""
        found = torch.zeros(self.units, dtype=torch.float64)
        first, left = 0, torch.zeros(self.units, dtype=torch.bool)
        left[list(alive)] = True
        for width in self.widths:
            members = torch.tensor(self.members[width], dtype=torch.int64)
            if not len(members):
                continue
            end = first + width * len(members)
            weights = self.weight[first:end].view(len(members), width, -1)
            squares = self.inverse[first:end, first:end].view(len(members), width, len(members), width)
            blocks = squares.diagonal(dim1=0, dim2=2).permute(2, 0, 1)
            first, here = end, left[members].nonzero().flatten()  # others are removed, their rows are zero
            if width == 1:
                errors = weights[here, 0].square().sum(1) / blocks[here, 0, 0]
            else:
                products = (weights @ weights.mT)[here]
                errors = torch.cholesky_solve(products, factor(blocks[here])).diagonal(dim1=1, dim2=2).sum(1)
            found[members[here]] = errors.double().cpu()
        return found[list(alive)]

    def remove(self, units: Sequence[int]) -> Tensor:
        """Remove units one after the other and return the error that each adds.

        The Cholesky factor of their joint block holds the factors that removing them one by one would take.
        """
        own = torch.cat([self.rows[unit] for unit in units])
        widths = torch.tensor([len(self.rows[unit]) for unit in units])
        if not len(own):
            return torch.zeros(len(units), dtype=torch.float64)
        lower = factor(self.inverse[own[:, None], own])
        share = torch.linalg.solve_triangular(lower, self.inverse[own], upper=False)  # [width, inputs]
        lost = torch.linalg.solve_triangular(lower, self.weight[own], upper=False)  # [width, outputs]
        self.inverse.addmm_(share.T, share, alpha=-1)
        self.weight.addmm_(share.T, lost, alpha=-1)
        self.gone.update(units)
        self.removed_rows += len(own)
        if self.removed_rows > (1 - SHRINK) * len(self.inverse):
            self._compact()
        places = torch.arange(len(units)).repeat_interleave(widths)
        return torch.zeros(len(units), dtype=torch.float64).index_add_(0, places, lost.square().sum(1).double().cpu())

    def _compact(self) -> None:
        """Drop the rows of removed units, which are zero by now."""
        others = torch.arange(len(self.inverse) - len(self.others), len(self.inverse))
        self.members = {
            width: [unit for unit in units if unit not in self.gone] for width, units in self.members.items()
        }
        left = torch.cat([*(self.rows[unit] for width in self.widths for unit in self.members[width]), others])
        self.inverse, self.weight = self.inverse[left[:, None], left], self.weight[left]
        self.removed_rows = 0
        self._count_rows()
