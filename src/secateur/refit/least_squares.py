"""Ridge regression towards the old weights, with the ridge chosen on held-out samples.

All tensors have the groups of a layer in front: g groups, m rows, n inputs, o outputs. Weights [g, o, n + 1] have the
constant last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from secateur.errors import SecateurError
from secateur.network.precision import CHECK, at_least_float32

RATIOS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # ridges, as a share of the mean square of the inputs
FINE = (1e-12, 1e-9)  # in double precision these too
ROWS = 1 << 15  # rows for second moments, if there are as many
LARGEST = 6144  # inputs, up to which second moments are kept; beyond, the rows themselves
DUAL_ROWS = 4096  # of those at most
EXACT = 256  # a relative error of fewer units in the last place is rounding


@dataclass(frozen=True)
class Fitted:
    """New weights, and their errors on the held-out samples."""

    weight: Tensor  # [g, o, n + 1]
    before: Tensor  # [g, o], the mean square error of the old weights
    after: Tensor  # [g, o]
    energy: Tensor  # [g, o], the mean square of the targets
    ratio: Tensor  # [g, o], the ridge of each; infinite where the old weights were kept


@dataclass
class Moments:
    """Sums over rows [x, 1] and targets t: x x', t x' and t t, in double precision."""

    gram: Tensor  # [g, n + 1, n + 1]
    cross: Tensor  # [g, o, n + 1]
    energy: Tensor  # [g, o]
    count: int = 0

    @classmethod
    def empty(cls, groups: int, n: int, outputs: int, device: torch.device) -> Moments:
        """Return the moments of no rows."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(groups, *shape, dtype=torch.float64, device=device)

        return cls(zeros(n + 1, n + 1), zeros(outputs, n + 1), zeros(outputs))

    def add(self, x: Tensor, t: Tensor) -> None:
        """Add rows x [g, m, n] with targets t [g, m, o]."""
        x, t = at_least_float32(x), at_least_float32(t)
        add_squares(self.gram, x)
        self.cross[..., :-1] += t.mT @ x
        self.cross[..., -1] += t.sum(1)
        self.energy += sum_of_squares(t)
        self.count += x.shape[1]

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            self.gram + other.gram, self.cross + other.cross, self.energy + other.energy, self.count + other.count
        )

    def error(self, weight: Tensor) -> Tensor:
        """Return the sum of squared errors of these weights, for each output."""
        return self.energy - 2 * (weight * self.cross).sum(2) + ((weight @ self.gram) * weight).sum(2)

    def solve(self, ratio: float, constant: bool) -> Tensor:
        """Return the weights that minimise |t - w x|^2 + ridge |w|^2, with a free constant or none."""
        n = self.gram.shape[1] - 1
        size = n + 1 if constant else n
        gram = self.gram[:, :size, :size].clone()
        diagonal = gram.diagonal(dim1=1, dim2=2)
        mean = diagonal[:, :n].mean(1, keepdim=True)
        diagonal[:, :n] += torch.where(mean > 0, ratio * mean, 1.0)
        found = torch.zeros_like(self.cross)
        found[..., :size] = torch.cholesky_solve(self.cross[..., :size].mT, factor(gram)).mT
        return found


def add_squares(gram: Tensor, x: Tensor) -> None:
    """Add the products of rows [x, 1] with themselves to a gram [..., n + 1, n + 1], x being [..., m, n]."""
    total = x.sum(-2)
    gram[..., :-1, :-1] += x.mT @ x
    gram[..., :-1, -1] += total
    gram[..., -1, :-1] += total
    gram[..., -1, -1] += x.shape[-2]


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


class _Fit:
    """The common part of both fits: the old weights and their errors."""

    def __init__(self, old: Tensor) -> None:
        self.old = old  # [g, o, n + 1], in double precision
        self.eps = torch.finfo(torch.float32).eps
        self.energy = torch.zeros_like(old[..., 0])  # of the held-out targets

    def residual(self, x: Tensor, t: Tensor, held_out: bool) -> tuple[Tensor, Tensor]:
        """Return the rows and the errors of the old weights: from sums, they would be differences of large numbers."""
        if held_out:
            self.energy += sum_of_squares(t)
        x, t = at_least_float32(x), at_least_float32(t)
        self.eps = torch.finfo(x.dtype).eps
        old = self.old.to(x.dtype)
        return x, t - x @ old[..., :-1].mT - old[..., None, :, -1]

    @property
    def ratios(self) -> tuple[float, ...]:
        """The ridges to try."""
        return (*FINE, *RATIOS) if self.eps < 1e-10 else RATIOS

    def exact(self, error: Tensor, energy: Tensor) -> Tensor:
        """Return where an error is only rounding."""
        return error <= (EXACT * self.eps) ** 2 * energy


class Normal(_Fit):
    """The fit by normal equations, from second moments: for any number of rows."""

    def __init__(self, old: Tensor) -> None:
        super().__init__(old)
        groups, outputs, size = old.shape
        self.fitted, self.held_out = (Moments.empty(groups, size - 1, outputs, old.device) for _ in range(2))

    def add(self, x: Tensor, t: Tensor, held_out: bool) -> None:
        """Add rows to fit, or held-out rows to choose the ridge by."""
        (self.held_out if held_out else self.fitted).add(*self.residual(x, t, held_out))

    def fit(self, constant: bool) -> Fitted:
        """Return, for each output, the fit with the best ridge to all rows, or the old weights."""
        held_out, together = self.held_out, self.fitted + self.held_out
        before = held_out.energy
        best, ratio = before.clone(), torch.full_like(before, torch.inf)
        for r in self.ratios:
            error = held_out.error(self.fitted.solve(r, constant))
            ratio, best = torch.where(error < best, r, ratio), torch.minimum(error, best)
        ratio[self.exact(before, self.energy)] = torch.inf
        weight = self.old.clone()
        for r in self.ratios:
            rows = ratio == r
            if rows.any():
                weight[rows] += together.solve(r, constant)[rows]
        best = torch.where(ratio.isinf(), before, best.clamp_min(0))
        count = max(1, held_out.count)
        return Fitted(weight, before / count, best / count, self.energy / count, ratio)


class Dual(_Fit):
    """The same fit from the products of rows with rows: for a layer that has more inputs than there are rows."""

    def __init__(self, old: Tensor) -> None:
        super().__init__(old)
        self.rows: dict[bool, list[tuple[Tensor, Tensor]]] = {False: [], True: []}

    def add(self, x: Tensor, t: Tensor, held_out: bool) -> None:
        """Keep rows while there is room."""
        room = (DUAL_ROWS // 4 if held_out else DUAL_ROWS) - sum(len(x) for x, _ in self.rows[held_out])
        if room > 0:
            rows, gap = self.residual(x[:, :room], t[:, :room], held_out)
            self.rows[held_out].append((rows[0], gap[0]))

    def fit(self, constant: bool) -> Fitted:
        """Return the same as `Normal.fit`, but without fitting the held-out rows."""
        if not (self.rows[False] and self.rows[True]):
            nothing = torch.zeros_like(self.energy)
            return Fitted(self.old, nothing, nothing, self.energy, torch.full_like(nothing, torch.inf))
        x, gap = (torch.cat(parts).double() for parts in zip(*self.rows[False], strict=True))
        held_x, held_gap = (torch.cat(parts).double() for parts in zip(*self.rows[True], strict=True))
        size = x.square().mean() * len(x)
        centre, lift = (x.mean(0), gap.mean(0)) if constant else (torch.zeros_like(x[0]), torch.zeros_like(gap[0]))
        x, gap = x - centre, gap - lift
        products = x @ x.T
        before, energy = held_gap.square().mean(0), self.energy[0] / len(held_x)
        best, found, ratio = before, self.old.clone(), torch.full_like(before, torch.inf)
        for r in self.ratios:
            ridged = products.clone()
            ridged.diagonal().add_(r * size if size > 0 else 1.0)
            change = torch.cholesky_solve(gap, factor(ridged)).T @ x
            change = torch.cat([change, (lift - change @ centre)[:, None]], 1)
            error = (held_gap - held_x @ change[:, :-1].T - change[:, -1]).square().mean(0)
            better = (error < best) & ~self.exact(before, energy)
            best, ratio = torch.where(better, error, best), torch.where(better, r, ratio)
            found[0] = torch.where(better[:, None], self.old[0] + change, found[0])
        return Fitted(found, before[None], best[None], energy[None], ratio[None])
