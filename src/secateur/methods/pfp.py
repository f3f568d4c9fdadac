"""Provable filter pruning: sensitivities, sizes by sample complexity, channels by importance sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor

from secateur import select
from secateur.bounds import derandomized, draws_for, eps_of, hybrid, points_needed
from secateur.errors import UsageError
from secateur.methods.base import Evidence, GroupRow, Method
from secateur.select import Selection
from secateur.sensitivity import Sensitivity
from secateur.statistics import check_kind

Array = npt.NDArray[np.float64]
Select = Literal["derand", "rand", "partial", "pivotal"]
SELECTS = ("derand", "rand", "partial", "pivotal")


@dataclass(frozen=True)
class PFP(Method):
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
    sensitivity: str = "max"  # which kind; only the largest share carries the guarantee

    allocation: ClassVar[str] = "pfp"

    def __post_init__(self) -> None:
        if self.select not in SELECTS:
            raise UsageError(f"select is {self.select!r}", remedy=f"use one of {', '.join(SELECTS)}")
        if not 0 < self.delta < 1:
            raise UsageError(f"delta is {self.delta}", remedy="give a probability between 0 and 1, such as 1e-12")
        if not 1 <= self.C < math.inf:
            raise UsageError(f"C is {self.C}", remedy="give a factor from 1 up")
        check_kind(self.sensitivity)

    def scores(self, evidence: Evidence) -> dict[str, Sensitivity]:
        """The sensitivities."""
        return evidence.sensitivities(self.sensitivity)

    def levels(self, one: Sensitivity) -> Array:
        """The eps at which the group reaches 1, 2, ..., n units: its expected number of distinct draws, rounded up."""
        return self.eps(one, np.arange(len(one.values)))

    def eps(self, one: Sensitivity, counts: npt.ArrayLike) -> Array:
        """The relative error that so many units promise; 1 or more promises nothing."""
        draws = self._draws(one.values.numpy(), np.asarray(counts, np.float64))
        return eps_of(draws, one.mass, one.sites, self.delta, self.C)

    def choose(self, name: str, scores: Sensitivity, count: int) -> Selection:
        """The units of a group that stay, with what their readers are multiplied by; rand and partial may differ in
        number, since how many distinct channels a draw has is chance."""
        one, s = scores, scores.values.numpy()
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

    def numbers(self, scores: Sensitivity) -> Tensor:
        """The sensitivities."""
        return scores.values

    def settings(self) -> dict[str, Any]:
        """As given."""
        return asdict(self)

    def row(self, row: GroupRow, scores: Sensitivity, count: int, chosen: Selection) -> GroupRow:
        """Errors of several steps add up. A guarantee is about the largest shares; other kinds have none."""
        found = replace(row, after=len(chosen.kept), mass=scores.mass if math.isnan(row.mass) else row.mass)
        if scores.kind != "max":
            return found
        before = [0.0 if math.isnan(error) else error for error in (row.eps, row.dropped)]
        eps, dropped = float(self.eps(scores, count)), self.bound(scores, chosen)
        return replace(found, eps=before[0] + eps, dropped=before[1] + dropped)

    def notes(self, rows: Sequence[GroupRow], points: int) -> list[str]:
        """Where the promise is empty, and whether there were points enough."""
        if self.sensitivity != "max":
            return [f"{self.sensitivity} sensitivities promise nothing before the cut; measure on held-out data"]
        notes = []
        cut = [row for row in rows if row.after < row.before]
        derand = self.select == "derand"
        vacuous = [row for row in cut if (row.dropped if derand else row.eps) >= 1]
        if vacuous:
            bound = "dropped" if derand else "eps"
            notes.append(
                f"in {len(vacuous)} of {len(cut)} cut groups the promised error is vacuous ({bound} >= 1): "
                "there the sizes are a well-founded guess, not a guarantee; measure the network on held-out data"
            )
        if self.select == "pivotal" and cut:
            notes.append("eps is what rand promises at these sizes; pivotal varies less but has no bound of its own")
        least = points_needed(self.delta, max(row.before for row in rows))
        if points < least:
            notes.append(f"{points} points are few: delta = {self.delta:g} asks for at least {least}")
        return notes

    def _draws(self, s: Array, counts: npt.ArrayLike) -> Array:
        total = s.sum()
        if not total:  # nothing matters, and nothing needs to be drawn
            return np.full(np.shape(counts), np.inf)
        return draws_for(counts, s / total)


def _whole(draws: Array) -> int:
    return max(1, int(min(float(draws), select.MOST_DRAWS)))
