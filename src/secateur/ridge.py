"""Least squares with a ridge, drawn towards the old weights, the ridge chosen on points that the fit has not seen.

All tensors have the groups of a layer in front: g groups, m rows, n things read, o outputs. Weights [g, o, n + 1] have
the constant last.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from secateur.errors import SecateurError

RATIOS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # of the mean square of what is read
FINE = (1e-12, 1e-9)  # in double precision these too
LARGEST = 6144  # things read, up to which second moments are kept; beyond, the rows themselves,
ROWS = 4096  # so many at most
EXACT = 256  # a relative error of fewer units in the last place is rounding


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
        x, t = wide(x), wide(t)
        add_squares(self.gram, x)
        self.cross[..., :-1] += t.mT @ x
        self.cross[..., -1] += t.sum(1)
        self.energy += wide(t).square().sum(1, dtype=torch.float64)
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
        gap = self.cross[..., :size] - old @ self.gram[..., :size]
        found = old.clone()
        found[..., :size] += torch.cholesky_solve(gap.mT, factor(gram)).mT
        return found


def add_squares(gram: Tensor, x: Tensor) -> None:
    """Add the products of rows [x, 1] with themselves to a gram [..., n + 1, n + 1], x being [..., m, n]."""
    total = x.sum(-2)
    gram[..., :-1, :-1] += x.mT @ x
    gram[..., :-1, -1] += total
    gram[..., -1, :-1] += total
    gram[..., -1, -1] += x.shape[-2]


def wide(x: Tensor) -> Tensor:
    """At least single precision: sums of squares leave the range of halves."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def factor(gram: Tensor) -> Tensor:
    """The Cholesky factor; where rounding has left the matrix indefinite, of one with a little more on its diagonal."""
    size = gram.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
    size = torch.where(size > 0, size, 1.0)
    more = 1e-9
    while (result := torch.linalg.cholesky_ex(gram)).info.any():
        if more > 1:
            raise SecateurError(
                "the second moments of what a layer reads are NaN or infinite",
                layer="data",
                remedy="check the inputs and the weights",
            )
        gram = gram.clone()
        gram.diagonal(dim1=-2, dim2=-1).add_(more * size)
        more *= 10
    return result.L


class _Fit:
    """What is common: the old weights, and what the data is like."""

    def __init__(self, old: Tensor) -> None:
        self.old = old  # [g, o, n + 1], in double precision
        self.eps = torch.finfo(torch.float32).eps

    def gap(self, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """The rows, and what the old weights miss; taken here, where it is not yet a difference of large sums."""
        x, t = wide(x), wide(t)
        self.eps = torch.finfo(x.dtype).eps
        old = self.old.to(x.dtype)
        return x, t - x @ old[..., :-1].mT - old[..., None, :, -1]

    @property
    def ratios(self) -> tuple[float, ...]:
        """The ridges to try."""
        return (*FINE, *RATIOS) if self.eps < 1e-10 else RATIOS

    def exact(self, error: Tensor, energy: Tensor) -> Tensor:
        """Where an error is but rounding."""
        return error <= (EXACT * self.eps) ** 2 * energy


class Normal(_Fit):
    """The fit through second moments: any number of rows."""

    def __init__(self, old: Tensor) -> None:
        super().__init__(old)
        groups, outputs, size = old.shape
        self.seen, self.held = (Moments.empty(groups, size - 1, outputs, old.device) for _ in range(2))
        self.energy = torch.zeros_like(old[..., 0])

    def add(self, x: Tensor, t: Tensor, held: bool) -> None:
        """Take rows in, to fit or to choose by."""
        (self.held if held else self.seen).add(*self.gap(x, t))
        if held:
            self.energy += wide(t).square().sum(1, dtype=torch.float64)

    def fit(self, constant: bool) -> Fitted:
        """For each output the best ridge, or the old weights; then once more with all rows."""
        held, whole, none = self.held, self.seen + self.held, torch.zeros_like(self.old)
        before = held.energy
        best, ratio = before.clone(), torch.full_like(before, torch.inf)
        for r in self.ratios:
            error = held.error(self.seen.solve(none, r, constant))
            ratio, best = torch.where(error < best, r, ratio), torch.minimum(error, best)
        ratio[self.exact(before, self.energy)] = torch.inf
        weight = self.old.clone()
        for r in self.ratios:
            rows = ratio == r
            if rows.any():
                weight[rows] += whole.solve(none, r, constant)[rows]
        best = torch.where(ratio.isinf(), before, best.clamp_min(0))
        count = max(1, held.count)
        return Fitted(weight, before / count, best / count, self.energy / count, ratio)


class Dual(_Fit):
    """The same fit through the products of rows with rows, for a layer that reads more things than there are rows."""

    def __init__(self, old: Tensor) -> None:
        super().__init__(old)
        self.rows: dict[bool, list[tuple[Tensor, Tensor]]] = {False: [], True: []}
        self.energy = torch.zeros_like(old[..., 0])

    def add(self, x: Tensor, t: Tensor, held: bool) -> None:
        """Keep rows while there is room."""
        room = (ROWS // 4 if held else ROWS) - sum(len(x) for x, _ in self.rows[held])
        if room > 0:
            rows, gap = self.gap(x[:, :room], t[:, :room])
            self.rows[held].append((rows[0], gap[0]))
            if held:
                self.energy += wide(t[:, :room]).square().sum(1, dtype=torch.float64)

    def fit(self, constant: bool) -> Fitted:
        """As that of `Normal`, but the held-out rows are not used for the fit."""
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
