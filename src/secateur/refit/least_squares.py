"""Ridge regression towards the old weights, with the ridge chosen by cross-validation over the samples.

All tensors have the groups of a layer in front: g groups, m rows, n inputs, o outputs. Weights [g, o, n + 1] have the
constant last.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from secateur.errors import SecateurError
from secateur.network.batches import EVERY
from secateur.network.precision import CHECK, at_least_float32
from secateur.network.processes import gather_from_all, in_use, reduce_over_all
from secateur.refit.pending import Pending
from secateur.refit.shifts import Windows

RATIOS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # ridges, as a share of the mean square of the inputs
FINE = (1e-9, 1e-12)  # in double precision these too
FEW = 0.1  # if fewer of the outputs are better with the next smaller ridge, none beyond it is tried
ROWS = 1 << 14  # rows for second moments, if there are as many
LARGEST = 6144  # inputs, up to which second moments are kept; beyond, the rows themselves
NARROW, BLOCKS = 128, 6  # products are computed in blocks of at least so many columns, and in no more blocks
DUAL_ROWS = 4096  # of those at most, in all folds
LARGE = 512  # coefficients, from which the first fold alone chooses which ridges the others try
EXACT = 256  # a relative error of fewer units in the last place is rounding


@dataclass(frozen=True)
class Fitted:
    """New weights, and their errors: on each sample, the error of the fit without the fold that it belongs to."""

    weight: Tensor  # [g, o, n + 1]
    before: Tensor  # [g, o], the mean square error of the old weights
    after: Tensor  # [g, o]
    energy: Tensor  # [g, o], the mean square of the targets
    ratio: Tensor  # [g, o], the ridge of each; infinite where the old weights were kept


@dataclass
class Moments:
    """Sums over rows [x, 1] and targets t: x x', t x' and t t; the last two in double precision."""

    gram: Tensor  # [g, n + 1, n + 1]
    cross: Tensor  # [g, o, n + 1]
    energy: Tensor  # [g, o]
    count: int = 0

    @classmethod
    def empty(
        cls, groups: int, n: int, outputs: int, device: torch.device, kind: torch.dtype = torch.float64
    ) -> Moments:
        """Return the moments of no rows, with x x' of this precision."""

        def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(groups, *shape, dtype=dtype, device=device)

        return cls(zeros(n + 1, n + 1, dtype=kind), zeros(outputs, n + 1), zeros(outputs))

    def add(self, x: Tensor, t: Tensor) -> None:
        """Add rows x [g, m, n] with targets t [g, m, o]."""
        x, t = at_least_float32(x), at_least_float32(t)
        add_squares(self.gram, x)
        self.cross[..., :-1] += t.mT @ x
        self.cross[..., -1] += t.sum(1)
        self.energy += sum_of_squares(t)
        self.count += x.shape[1]

    def __iadd__(self, other: Moments) -> Moments:
        self.gram += other.gram
        self.cross += other.cross
        self.energy += other.energy
        self.count += other.count
        return self

    def error(self, weight: Tensor) -> Tensor:
        """Return the sum of squared errors of these weights, for each output."""
        product = weight.to(self.gram.dtype) @ self.gram
        return self.energy - 2 * (weight * self.cross).sum(2) + (product * weight).sum(2, dtype=torch.float64)

    def solve(self, ratio: float, constant: bool) -> Tensor:
        """Return the weights that minimise |t - w x|^2 + ridge |w|^2, with a free constant or none.

        The ridge is added to x x' in place: of a large layer, a copy takes much memory.
        """
        n = self.gram.shape[1] - 1
        size = n + 1 if constant else n
        gram = self.gram[:, :size, :size]
        diagonal = gram.diagonal(dim1=1, dim2=2)
        mean = diagonal[:, :n].mean(1, keepdim=True)
        diagonal[:, :n] += torch.where(mean > 0, ratio * mean, 1.0)
        lower = factor(gram)
        half = torch.linalg.solve_triangular(lower, self.cross[..., :size].mT.to(gram.dtype), upper=False)
        found = gram.new_zeros(self.cross.shape)
        found[..., :size] = torch.linalg.solve_triangular(lower.mT, half, upper=True).mT
        return found


def add_squares(gram: Tensor, x: Tensor) -> None:
    """Add the products of rows [x, 1] with themselves to a gram [..., n + 1, n + 1], x being [..., m, n]."""
    total = x.sum(-2)
    n = x.shape[-1]
    step = max(NARROW, -(-n // BLOCKS))
    for first in range(0, n, step):  # the part below the diagonal is a copy of that above
        end = min(first + step, n)
        block = x[..., first:end].mT @ x[..., first:]
        gram[..., first:end, first:-1] += block
        gram[..., end:-1, first:end] += block[..., step:].mT
    gram[..., :-1, -1] += total
    gram[..., -1, :-1] += total
    gram[..., -1, -1] += x.shape[-2]


def add_patches(gram: Tensor, windows: Windows, x: Tensor) -> None:
    """Add the products of all patches of maps, as rows [x, 1], to a gram [n + 1, n + 1]."""
    total = windows.sums(x)
    gram[:-1, :-1] += windows.squares(x)
    gram[:-1, -1] += total
    gram[-1, :-1] += total
    gram[-1, -1] += len(x) * math.prod(windows.positions)


def sum_of_squares(t: Tensor) -> Tensor:
    """Return the sum of the squares of [g, m, o] over the rows, in double precision."""
    return at_least_float32(t).square().sum(1, dtype=torch.float64)


def factor(gram: Tensor) -> Tensor:
    """Return the Cholesky factor; of an indefinite matrix, as rounding leaves it, after adding to its diagonal."""
    size = gram.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
    size = torch.where(size > 0, size, 1.0)
    more = 1e-9
    while (result := torch.linalg.cholesky_ex(gram)).info.any():
        if more > 1:
            raise SecateurError("second moments of the inputs are NaN or infinite", layer="data", remedy=CHECK)
        gram = gram.clone()
        gram.diagonal(dim1=-2, dim2=-1).add_(more * size)
        more *= 10
    return result.L


def sample_positions(positions: int, rows: int, samples: int, source: torch.Generator) -> Tensor:
    """Return random positions, as many as give this number of rows over all samples; all if there are no more."""
    wanted = max(1, math.ceil(rows / samples))
    if wanted >= positions:
        return torch.arange(positions)
    return torch.randperm(positions, generator=source)[:wanted].sort().values


class _Fit(ABC):
    """The fit of a layer: towards its old weights, by a ridge that cross-validation over the samples chooses."""

    def __init__(self, old: Tensor, kind: torch.dtype) -> None:
        """Begin a fit.

        Args:
            old: the weights, in double precision.
            kind: the precision of the rows, which is enough for solutions: cross-validation measures each as it is.
        """
        self.old, self.kind = old, kind  # [g, o, n + 1]
        self.eps = torch.finfo(kind).eps
        self.energy = torch.zeros_like(old[..., 0])  # of the targets
        self.counts = [0] * EVERY  # of the rows in each fold

    def add(self, x: Tensor, t: Tensor, fold: int, batch: int = 0) -> None:
        """Add rows x [g, m, n] with targets t [g, m, o] to a fold, from the batch of this number."""
        x, t = at_least_float32(x), at_least_float32(t)
        old = self.old.to(x.dtype)
        gap = t - x @ old[..., :-1].mT - old[..., None, :, -1]  # from sums, it would be a difference of large numbers
        self.eps = torch.finfo(x.dtype).eps
        self.energy += sum_of_squares(t)
        self.counts[fold] += x.shape[1]
        self._keep(x, gap, fold, batch)

    def fit(self, constant: bool) -> Fitted:
        """Return, for each output, the mean of the fits without one fold each, or the old weights.

        The ridge of each output is the one with the least error on the folds that the fits have not seen.
        """
        folds = [fold for fold, count in enumerate(self.counts) if count]
        change = self.old.new_zeros(*self.energy.shape, self._coefficients)
        before = best = sum((self._error(fold, change) for fold in folds), start=torch.zeros_like(self.energy))
        inexact = before > (EXACT * self.eps) ** 2 * self.energy  # otherwise the error is rounding
        ratio = torch.full_like(best, torch.inf)
        for r, one, error in self._tried(folds, change, inexact, constant) if len(folds) > 1 else ():
            better = (error < best) & inexact
            best, ratio = torch.where(better, error, best), torch.where(better, r, ratio)
            change = torch.where(better[..., None], one / len(folds), change)
            if better.double().mean() < FEW:
                break
        weight = self.old if ratio.isinf().all() else self.old + self._as_weights(change)
        count = max(1, sum(self.counts))
        return Fitted(weight, before / count, best.clamp_min(0) / count, self.energy / count, ratio)

    def _tried(
        self, folds: Sequence[int], zero: Tensor, inexact: Tensor, constant: bool
    ) -> Iterator[tuple[float, Tensor, Tensor]]:
        """Return each ridge with the sum of the fits without one fold each, and the errors on those folds."""
        if self._coefficients <= LARGE:
            for r in self.ratios:
                found = [self._solve(fold, r, constant) for fold in folds]
                errors = [self._error(fold, one) for fold, one in zip(folds, found, strict=True)]
                yield r, sum(found, start=torch.zeros_like(zero)), sum(errors, start=torch.zeros_like(self.energy))
            return
        changes, totals = self._on_first(folds[0], zero, inexact, constant)
        for fold in folds[1:]:
            for r, one in self._solutions(fold, list(changes), constant):
                changes[r] += one
                totals[r] += self._error(fold, one)
        for r, one in changes.items():
            yield r, one, totals[r]

    def _on_first(
        self, fold: int, zero: Tensor, inexact: Tensor, constant: bool
    ) -> tuple[dict[float, Tensor], dict[float, Tensor]]:
        """Return the fits without this fold, and their errors, by the ridges that the other folds are to try.

        These are all from the largest to the smallest one that is best on this fold for more than a few of the outputs.
        """
        best = self._error(fold, zero)
        changes, errors, ratio = dict[float, Tensor](), dict[float, Tensor](), torch.full_like(best, torch.inf)
        for r, one in self._solutions(fold, self.ratios, constant):
            changes[r], errors[r] = one, self._error(fold, one)
            better = (errors[r] < best) & inexact
            best, ratio = torch.where(better, errors[r], best), torch.where(better, r, ratio)
            if better.double().mean() < FEW:
                break
        often = [r for r in changes if (ratio == r).double().mean() > FEW / 4]
        for r in [r for r in changes if often and not often[-1] <= r <= often[0]]:
            del changes[r], errors[r]
        return changes, errors

    def _solutions(self, fold: int, ratios: Iterable[float], constant: bool) -> Iterator[tuple[float, Tensor]]:
        """Return each ridge with the fit to all folds but this one."""
        for ratio in ratios:
            yield ratio, self._solve(fold, ratio, constant)

    @property
    def ratios(self) -> tuple[float, ...]:
        """The ridges to try."""
        return (*RATIOS, *FINE) if self.eps < 1e-10 else RATIOS

    @property
    @abstractmethod
    def _coefficients(self) -> int:
        """The number of coefficients of a fit."""

    @abstractmethod
    def add_over_processes(self) -> None:
        """Let every process have the rows of all of them, or their moments."""

    @abstractmethod
    def _keep(self, x: Tensor, gap: Tensor, fold: int, batch: int) -> None:
        """Keep rows with the errors of the old weights, or their moments."""

    @abstractmethod
    def _solve(self, fold: int, ratio: float, constant: bool) -> Tensor:
        """Return the fit to all folds but this one, as a change of the old weights, [g, o, coefficients]."""

    @abstractmethod
    def _error(self, fold: int, change: Tensor) -> Tensor:
        """Return the sum of squared errors of the changed weights on this fold, [g, o]."""

    @abstractmethod
    def _as_weights(self, change: Tensor) -> Tensor:
        """Return a change, in the coefficients that `_solve` returns, as one of the weights, [g, o, n + 1]."""


class Normal(_Fit):
    """The fit by normal equations, from second moments: for any number of rows."""

    def __init__(self, old: Tensor, kind: torch.dtype = torch.float64) -> None:
        super().__init__(old, kind)
        self.moments = [self._empty() for _ in range(EVERY)]
        self.pending = [Pending() for _ in range(EVERY)]

    def _empty(self) -> Moments:
        groups, outputs, size = self.old.shape
        return Moments.empty(groups, size - 1, outputs, self.old.device, self.kind)

    @property
    def _coefficients(self) -> int:
        return self.old.shape[2]

    def add_maps(self, windows: Windows, x: Tensor, t: Tensor, fold: int) -> None:
        """Add all patches of maps x [samples, channels, *space] with targets t [samples, o, *positions] to a fold."""
        x, t = at_least_float32(x), at_least_float32(t)
        old = self.old[0].to(x.dtype)
        weight = old[:, :-1].unflatten(1, (x.shape[1], *windows.kernel))
        gap = t - windows.convolve(x, weight, old[:, -1])
        self.eps = torch.finfo(x.dtype).eps
        self.energy += sum_of_squares(t.flatten(2).movedim(1, 2).flatten(0, 1)[None])
        self.counts[fold] += len(x) * math.prod(windows.positions)
        self._put(fold, windows, len(x) * math.prod(windows.positions), x, gap)

    def _put(self, fold: int, windows: Windows | None, rows: int, x: Tensor, gap: Tensor) -> None:
        pending = self.pending[fold]
        if pending.kind != windows:
            self._add_pending(fold)
            pending.kind = windows
        if pending.put(rows, self.old.shape[2], x, gap):
            self._add_pending(fold)

    def _add_pending(self, fold: int) -> None:
        """Add what waits to the moments of a fold."""
        pending, own = self.pending[fold], self.moments[fold]
        if not pending.parts:
            return
        if not isinstance(pending.kind, Windows):
            own.add(*pending.take(dim=1))
            return
        windows = pending.kind
        x, gap = pending.take(dim=0)
        add_patches(own.gram[0], windows, x)
        own.cross[0, :, :-1] += windows.products(x, gap)
        own.cross[0, :, -1] += gap.flatten(2).sum((0, 2))
        own.energy[0] += gap.flatten(2).square().sum(2).sum(0, dtype=torch.float64)
        own.count += len(x) * math.prod(windows.positions)

    def fit(self, constant: bool) -> Fitted:
        """Return, for each output, the mean of the fits without one fold each, or the old weights."""
        for fold in range(EVERY):
            self._add_pending(fold)
        return super().fit(constant)

    def add_over_processes(self) -> None:
        """Replace all sums by those over the rows of all processes."""
        for fold in range(EVERY):
            self._add_pending(fold)
        counts = torch.tensor(self.counts)
        sums = [tensor for one in self.moments for tensor in (one.gram, one.cross, one.energy)]
        for total in (counts, self.energy, *sums):
            reduce_over_all(total, "sum")
        self.counts = counts.tolist()
        for one, count in zip(self.moments, self.counts, strict=True):
            one.count = count

    def _keep(self, x: Tensor, gap: Tensor, fold: int, batch: int) -> None:
        self._put(fold, None, x.shape[1], x, gap)

    def _solutions(self, fold: int, ratios: Iterable[float], constant: bool) -> Iterator[tuple[float, Tensor]]:
        """Return each ridge with the fit to all folds but this one, from one sum of their moments."""
        others = self._empty()
        for number, one in enumerate(self.moments):
            if number != fold:
                others += one
        diagonal = others.gram.diagonal(dim1=1, dim2=2)
        plain = diagonal.clone()
        for ratio in ratios:
            diagonal.copy_(plain)
            yield ratio, others.solve(ratio, constant)

    def _solve(self, fold: int, ratio: float, constant: bool) -> Tensor:
        ((_, found),) = self._solutions(fold, [ratio], constant)
        return found

    def _error(self, fold: int, change: Tensor) -> Tensor:
        return self.moments[fold].error(change)

    def _as_weights(self, change: Tensor) -> Tensor:
        return change


class Dual(_Fit):
    """The same fit from the products of rows with rows: for a layer that has more inputs than there are rows.

    Its coefficients are those of the rows, and the constant.
    """

    def __init__(self, old: Tensor, kind: torch.dtype = torch.float64) -> None:
        super().__init__(old, kind)
        self.parts: list[tuple[Tensor, Tensor, int, int]] = []  # rows, errors of the old weights, their fold and batch

    def add(self, x: Tensor, t: Tensor, fold: int, batch: int = 0) -> None:
        """Add rows while there is room."""
        if room := DUAL_ROWS // EVERY - self.counts[fold]:
            super().add(x[:, :room], t[:, :room], fold, batch)

    def add_over_processes(self) -> None:
        """Gather the rows of all processes, and keep those that one process would have kept."""
        if not in_use():
            return
        old = self.old[0].to(self.kind)
        rows, gaps = [old.new_empty(0, old.shape[1] - 1)], [old.new_empty(0, old.shape[0])]
        tags = [torch.empty(0, 2, dtype=torch.int64)]
        for x, gap, fold, batch in self.parts:
            rows, gaps = [*rows, x], [*gaps, gap]
            tags.append(torch.tensor([[batch, fold]]).expand(len(x), 2))
        x, gap, tag = (gather_from_all(torch.cat(one)) for one in (rows, gaps, tags))
        in_order = tag[:, 0].argsort(stable=True)
        self.parts, self.energy = [], torch.zeros_like(self.energy)
        for fold in range(EVERY):
            chosen = in_order[tag[in_order, 1] == fold][: DUAL_ROWS // EVERY].to(x.device)
            self.counts[fold] = len(chosen)
            self.parts.append((x[chosen], gap[chosen], fold, 0))
            self.energy += sum_of_squares((gap[chosen] + x[chosen] @ old[:, :-1].T + old[:, -1])[None])

    @property
    def ratios(self) -> tuple[float, ...]:
        """The ridges to try; coefficients of rows do not resolve finer ones."""
        return RATIOS

    @property
    def _coefficients(self) -> int:
        return sum(self.counts) + 1

    def _keep(self, x: Tensor, gap: Tensor, fold: int, batch: int) -> None:
        self.parts.append((x[0], gap[0], fold, batch))

    @cached_property
    def _rows(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All rows, their errors, their folds, and the products of rows with rows."""
        rows, gaps, folds, _ = zip(*self.parts, strict=True)
        x = torch.cat(rows).double()
        numbers = torch.cat([torch.full((len(part),), fold) for part, fold in zip(rows, folds, strict=True)])
        return x, torch.cat(gaps).double(), numbers.to(x.device), x @ x.T

    def _solve(self, fold: int, ratio: float, constant: bool) -> Tensor:
        x, gap, folds, products = self._rows
        others = (folds != fold).nonzero()[:, 0]
        inner, goal = products[others][:, others], gap[others]
        size = inner.diagonal().sum() / x.shape[1]
        found = gap.new_zeros(1, gap.shape[1], len(x) + 1)
        centre, lift = inner.mean(0), goal.mean(0)
        if constant:
            inner, goal = inner - centre - centre[:, None] + centre.mean(), goal - lift
        inner.diagonal().add_(ratio * size if size > 0 else 1.0)
        found[0, :, others] = torch.cholesky_solve(goal, factor(inner)).T
        if constant:
            found[0, :, -1] = lift - found[0, :, others] @ centre
        return found

    def _error(self, fold: int, change: Tensor) -> Tensor:
        _, gap, folds, products = self._rows
        own = folds == fold
        return (gap[own] - products[own] @ change[0, :, :-1].T - change[0, :, -1]).square().sum(0)[None]

    def _as_weights(self, change: Tensor) -> Tensor:
        return torch.cat([change[..., :-1] @ self._rows[0], change[..., -1:]], 2)
