"""Least squares with a ridge, drawn towards the old weights, the ridge chosen on points that the fit has not seen.

All tensors have the groups of a layer in front: g groups, m rows, n things read, o outputs. Weights [g, o, n + 1] have
the constant last.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

RATIOS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # of the mean square of what is read
LARGEST = 6144  # things read, up to which second moments are kept; beyond, the rows themselves,
ROWS = 4096  # so many at most
EXACT = 1e-9  # a relative error below this is rounding


@dataclass(frozen=True)
class Fitted:
    """New weights, and what they changed on the points that were held out."""

    weight: Tensor  # [g, o, n + 1]
    before: Tensor  # [g, o], the mean square error of the old weights on held-out points
    after: Tensor  # [g, o]
    energy: Tensor  # [g, o], the mean square of what was wanted
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
        """No rows yet."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(groups, *shape, dtype=torch.float64, device=device)

        return cls(zeros(n + 1, n + 1), zeros(outputs, n + 1), zeros(outputs))

    def add(self, x: Tensor, t: Tensor) -> None:
        """Take rows x [g, m, n] with targets t [g, m, o] in."""
        rows = torch.cat([x, x.new_ones(*x.shape[:2], 1)], 2)
        self.gram += (rows.mT @ rows).double()
        self.cross += (t.mT @ rows).double()
        self.energy += t.square().sum(1, dtype=torch.float64)
        self.count += x.shape[1]

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            self.gram + other.gram, self.cross + other.cross, self.energy + other.energy, self.count + other.count
        )

    def error(self, weight: Tensor) -> Tensor:
        """The sum of squares that these weights leave, for each output."""
        return self.energy - 2 * (weight * self.cross).sum(2) + ((weight @ self.gram) * weight).sum(2)

    def solve(self, old: Tensor, ratio: float, constant: bool) -> Tensor:
        """Minimise |t - w x|^2 + ridge |w - old|^2 over w, the constant free or fixed."""
        n = self.gram.shape[1] - 1
        size = n + 1 if constant else n
        gram = self.gram[:, :size, :size].clone()
        diagonal = gram.diagonal(dim1=1, dim2=2)
        mean = diagonal[:, :n].mean(1, keepdim=True)
        diagonal[:, :n] += torch.where(mean > 0, ratio * mean, 1.0)
        if constant:
            diagonal[:, n] += 1e-9 * self.count
        gap = self.cross[..., :size] - old @ self.gram[..., :size]
        found = old.clone()
        found[..., :size] += torch.cholesky_solve(gap.mT, factor(gram)).mT
        return found


def factor(gram: Tensor) -> Tensor:
    """The Cholesky factor; where rounding has left the matrix indefinite, of one with a little more on its diagonal."""
    size = gram.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
    more = 1e-9
    while (result := torch.linalg.cholesky_ex(gram)).info.any():
        gram = gram.clone()
        gram.diagonal(dim1=-2, dim2=-1).add_(more * size)
        more *= 10
    return result.L


class Normal:
    """The fit through second moments: any number of rows."""

    def __init__(self, groups: int, n: int, outputs: int, device: torch.device) -> None:
        self.seen, self.held = (Moments.empty(groups, n, outputs, device) for _ in range(2))

    def add(self, x: Tensor, t: Tensor, held: bool) -> None:
        """Take rows in, to fit or to choose by."""
        (self.held if held else self.seen).add(x, t)

    def fit(self, old: Tensor, constant: bool) -> Fitted:
        """For each output the best ridge, or the old weights; then once more with all rows."""
        held, whole = self.held, self.seen + self.held
        before = held.error(old)
        best, ratio = before.clone(), torch.full_like(before, torch.inf)
        for r in RATIOS:
            error = held.error(self.seen.solve(old, r, constant))
            ratio, best = torch.where(error < best, r, ratio), torch.minimum(error, best)
        ratio[before <= EXACT * held.energy] = torch.inf
        weight = old.clone()
        for r in RATIOS:
            rows = ratio == r
            if rows.any():
                weight[rows] = whole.solve(old, r, constant)[rows]
        best = torch.where(ratio.isinf(), before, best)
        count = max(1, held.count)
        return Fitted(weight, before.clamp_min(0) / count, best.clamp_min(0) / count, held.energy / count, ratio)


class Dual:
    """The same fit through the products of rows with rows, for a layer that reads more things than there are rows."""

    def __init__(self) -> None:
        self.rows: dict[bool, list[tuple[Tensor, Tensor]]] = {False: [], True: []}

    def add(self, x: Tensor, t: Tensor, held: bool) -> None:
        """Keep rows while there is room."""
        room = (ROWS // 4 if held else ROWS) - sum(len(x) for x, _ in self.rows[held])
        if room > 0:
            self.rows[held].append((x[0, :room], t[0, :room]))

    def fit(self, old: Tensor, constant: bool) -> Fitted:
        """As that of `Normal`, but one ridge for all outputs, and the held-out rows are not used for the fit."""
        x, t = (torch.cat(parts).double() for parts in zip(*self.rows[False], strict=True))
        held_x, held_t = (torch.cat(parts).double() for parts in zip(*self.rows[True], strict=True))
        weight, shift = old[0, :, :-1], old[0, :, -1]
        gap = t - x @ weight.T - shift
        centre, lift = (x.mean(0), gap.mean(0)) if constant else (torch.zeros_like(x[0]), torch.zeros_like(gap[0]))
        x, gap = x - centre, gap - lift
        products = x @ x.T
        before = (held_t - held_x @ weight.T - shift).square().mean(0)
        energy = held_t.square().mean(0)
        best, found, ratio = before, old.clone(), torch.full_like(before, torch.inf)
        for r in RATIOS:
            ridged = products.clone()
            ridged.diagonal().add_(r * x.square().mean() * len(x))
            change = torch.cholesky_solve(gap, factor(ridged)).T @ x
            trial = torch.cat([weight + change, (shift + lift - change @ centre)[:, None]], 1)
            error = (held_t - held_x @ trial[:, :-1].T - trial[:, -1]).square().mean(0)
            better = (error < best) & (before > EXACT * energy)
            best, ratio = torch.where(better, error, best), torch.where(better, r, ratio)
            found[0] = torch.where(better[:, None], trial, found[0])
        return Fitted(found, before[None], best[None], energy[None], ratio[None])
