"""Provable filter pruning: sensitivities, sizes by sample complexity, channels by importance sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from secateur import select
from secateur.bounds import derandomized, draws_for, eps_of, hybrid
from secateur.errors import UsageError
from secateur.select import Selection
from secateur.sensitivity import Sensitivity

Array = npt.NDArray[np.float64]
Select = Literal["derand", "rand", "partial", "pivotal"]
SELECTS = ("derand", "rand", "partial", "pivotal")


@dataclass(frozen=True)
class PFP:
    """The paper's method, with the corrections that docs/method.md lists.

    select: how channels are chosen once their number is known: `derand` keeps the most sensitive, `rand` draws with
        replacement, `partial` keeps some and draws the rest, `pivotal` draws exactly as many as wanted.
    delta: the probability with which the guarantee may fail.
    C: how far fresh data may exceed the sensitivities, as a factor.
    """

    select: Select = "derand"
    delta: float = 1e-12
    C: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.select not in SELECTS:
            raise UsageError(f"select is {self.select!r}", remedy=f"use one of {', '.join(SELECTS)}")
        if not 0 < self.delta < 1:
            raise UsageError(f"delta is {self.delta}", remedy="give a probability between 0 and 1, such as 1e-12")
        if not 1 <= self.C < math.inf:
            raise UsageError(f"C is {self.C}", remedy="give a factor from 1 up")

    def levels(self, one: Sensitivity) -> Array:
        """The eps at which the group reaches 1, 2, ..., n units: its expected number of distinct draws, rounded up."""
        return self.eps(one, np.arange(len(one.values)))

    def eps(self, one: Sensitivity, counts: npt.ArrayLike) -> Array:
        """The relative error that so many units promise; 1 or more promises nothing."""
        draws = self._draws(one.values.numpy(), np.asarray(counts, np.float64))
        return eps_of(draws, one.mass, one.sites, self.delta, self.C)

    def choose(self, name: str, one: Sensitivity, count: int) -> Selection:
        """The units of a group that stay, with what their readers are multiplied by; rand and partial may differ in
        number, since how many distinct channels a draw has is chance."""
        s = one.values.numpy()
        if self.select == "derand" or count >= len(s):
            return select.derand(s, count)
        rng = select.generator(self.seed, name)
        if self.select == "pivotal":
            return select.pivotal(s, count, rng)
        if count >= np.count_nonzero(s):  # every channel that matters stays: no draw is needed
            return select.derand(s, count)
        if self.select == "rand":
            return select.rand(s, _whole(self._draws(s, count)), rng)
        first = min(count, hybrid(s, float(self.eps(one, count)), one.sites, self.delta, self.C).k)
        if first == count:
            return select.derand(s, count)
        rest = np.sort(s)[::-1][first:]
        return select.partial(s, first, _whole(self._draws(rest, count - first)), rng)

    def bound(self, one: Sensitivity, chosen: Selection) -> float:
        """The relative error of keeping just these, unscaled: what was dropped, times C."""
        dropped = np.delete(one.values.numpy(), list(chosen.kept))
        return derandomized(dropped, self.C)

    def _draws(self, s: Array, counts: npt.ArrayLike) -> Array:
        total = s.sum()
        if not total:  # nothing matters, and nothing needs to be drawn
            return np.full(np.shape(counts), np.inf)
        return draws_for(counts, s / total)


def _whole(draws: Array) -> int:
    return max(1, int(min(float(draws), select.MOST_DRAWS)))
