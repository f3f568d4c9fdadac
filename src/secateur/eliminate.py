"""Which units of a group go first: one by one the one that the layers reading it can do without most easily.

A layer makes `w x`. Without the units R, the best that refitted weights can do leaves the error
`w_R (H_RR)^-1 w_R'`, H the inverse of the second moments of x: the block form of the optimal brain surgeon.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateur.ridge import factor

SHRINK = 0.8  # a state with fewer of its rows left is made smaller
AT_ONCE = 64  # units go in so many-th parts of those left


@dataclass(frozen=True)
class Reader:
    """One layer that reads a group."""

    gram: Tensor  # [n, n], mean of x x' over what it reads
    weight: Tensor  # [outputs, n], each row weighed by how much its error matters
    rows: tuple[tuple[int, ...], ...]  # for each unit its places among the n


@dataclass(frozen=True)
class Alone:
    """A layer that reads too much for its moments: only the error that each unit's own going leaves is known."""

    errors: Tensor  # [units]


@dataclass(frozen=True)
class Order:
    """How a group shrinks."""

    removed: tuple[int, ...]  # units, in the order in which they go; the last one stays
    errors: Tensor  # [units], the error once 0, 1, 2, ... have gone


def eliminate(readers: Sequence[Reader | Alone], ridge: float = 1e-3) -> Order:
    """The order in which the units of a group go, and the error after each.

    >>> order = eliminate([Reader(gram, weight, rows)])
    >>> order.removed[:3], order.errors[:4]
    """
    states = [_Fixed(one) if isinstance(one, Alone) else _State(one, ridge) for one in readers]
    units = states[0].units
    alive = list(range(units))
    removed: list[int] = []
    errors = [0.0]
    while len(alive) > 1:
        scores = sum((state.scores(alive) for state in states), start=torch.zeros(len(alive), dtype=torch.float64))
        count = max(1, len(alive) // AT_ONCE)
        going = [alive[i] for i in scores.argsort(stable=True)[: min(count, len(alive) - 1)].tolist()]
        for unit in going:
            errors.append(errors[-1] + sum(state.remove(unit) for state in states))
        removed += going
        gone = set(going)
        alive = [unit for unit in alive if unit not in gone]
    return Order((*removed, *alive), torch.tensor(errors, dtype=torch.float64))


class _Fixed:
    """A reader to which every unit is as dear as at the start."""

    def __init__(self, reader: Alone) -> None:
        self.errors = reader.errors.double()
        self.units = len(self.errors)

    def scores(self, alive: Sequence[int]) -> Tensor:
        """The error that each unit's going adds."""
        return self.errors[list(alive)]

    def remove(self, unit: int) -> float:
        """Let a unit go; the error that it adds."""
        return float(self.errors[unit])


class _State:
    """A reader from which units have gone."""

    def __init__(self, reader: Reader, ridge: float) -> None:
        gram = reader.gram.double().clone()
        mean = float(gram.diagonal().mean())
        gram.diagonal().add_(ridge * mean if mean > 0 else 1.0)
        self.inverse = torch.cholesky_inverse(factor(gram))
        self.weight = reader.weight.double().clone()
        self.rows = [torch.tensor(rows, dtype=torch.int64) for rows in reader.rows]
        self.stays = torch.ones(len(gram), dtype=torch.bool)  # rows of nothing that has gone
        self.units = len(self.rows)
        self.widths = sorted({len(rows) for rows in reader.rows})

    def scores(self, alive: Sequence[int]) -> Tensor:
        """The error that each unit's going would add."""
        found = torch.zeros(len(alive), dtype=torch.float64)
        for width in self.widths:
            which = [i for i, unit in enumerate(alive) if len(self.rows[unit]) == width]
            if not which or not width:
                continue
            rows = torch.stack([self.rows[alive[i]] for i in which])  # [units, width]
            blocks = self.inverse[rows[:, :, None], rows[:, None, :]]
            weights = self.weight[:, rows].permute(1, 2, 0)  # [units, width, outputs]
            solved = torch.linalg.solve_triangular(factor(blocks), weights, upper=False)
            found[which] = solved.square().sum((1, 2))
        return found

    def remove(self, unit: int) -> float:
        """Let a unit go; the error that it adds."""
        rows = self.rows[unit]
        if not len(rows):
            return 0.0
        lower = factor(self.inverse[rows[:, None], rows])
        share = torch.linalg.solve_triangular(lower, self.inverse[rows], upper=False)  # [width, n]
        lost = torch.linalg.solve_triangular(lower, self.weight[:, rows].T, upper=False)  # [width, outputs]
        self.inverse.addmm_(share.T, share, alpha=-1)
        self.weight.addmm_(lost.T, share, alpha=-1)
        self.stays[rows] = False
        if int(self.stays.sum()) < SHRINK * len(self.stays):
            self._shrink()
        return float(lost.square().sum())

    def _shrink(self) -> None:
        """Let go of the rows of what has gone, of which nothing is left by now."""
        left, place = self.stays.nonzero().flatten(), self.stays.cumsum(0) - 1
        self.inverse, self.weight = self.inverse[left][:, left], self.weight[:, left]
        self.rows = [place[rows] for rows in self.rows]
        self.stays = self.stays[left]
