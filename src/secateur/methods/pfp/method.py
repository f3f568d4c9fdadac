"""Provable filter pruning: sensitivities, sizes by sample complexity, channels by importance sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor

from secateur.errors import UsageError
from secateur.methods.base import Evidence, GroupRow, Method
from secateur.methods.pfp import sampling as select
from secateur.methods.pfp.bounds import derandomized, draws_for, eps_of, hybrid, samples_needed
from secateur.methods.pfp.sensitivity import Sensitivity
from secateur.methods.pfp.statistics import check_kind
from secateur.methods.selection import Selection

Array = npt.NDArray[np.float64]
Select = Literal["derand", "rand", "partial", "pivotal"]
SELECTS = ("derand", "rand", "partial", "pivotal")


@dataclass(frozen=True)
class PFP(Method):
    """The paper's method, with the corrections that docs/method.md lists.

    Attributes:
        select: how channels are selected once their number is known: `derand` keeps the most sensitive, `rand` samples
            with replacement, `partial` keeps some and samples the rest, `pivotal` samples exactly the wanted number.
        delta: failure probability of the guarantee.
        C: factor by which fresh data may exceed the measured sensitivities.
        sensitivity: the kind; only the largest share, `max`, carries the guarantee.
    """

    select: Select = "derand"
    delta: float = 1e-12
    C: float = 1.0
    seed: int = 0
    sensitivity: str = "max"

    allocation: ClassVar[str] = "pfp"

    def __post_init__(self) -> None:
        if self.select not in SELECTS:
            raise UsageError(f"select is {self.select!r}", remedy=f"use one of {', '.join(SELECTS)}")
        if not 0 < self.delta < 1:
            raise UsageError(f"delta is {self.delta}", remedy="use a probability between 0 and 1, such as 1e-12")
        if not 1 <= self.C < math.inf:
            raise UsageError(f"C is {self.C}", remedy="use a factor from 1 up")
        check_kind(self.sensitivity)

    @property
    def random_size(self) -> bool:
        """Whether the number of distinct sampled channels is random, as with replacement."""
        return self.select in ("rand", "partial")

    def scores(self, evidence: Evidence) -> dict[str, Sensitivity]:
        """Return the sensitivities."""
        return evidence.sensitivities(self.sensitivity)

    def levels(self, one: Sensitivity) -> Array:
        """Return the eps at which the group reaches 1, 2, ..., n units, in expectation and rounded up."""
        return self.eps(one, np.arange(len(one.values)))

    def whole_levels(self, one: Sensitivity) -> Array:
        """Return the same for whole numbers of draws, which is what a guarantee needs."""
        draws = np.floor(self._draws(one.values.numpy(), np.arange(len(one.values))))
        return eps_of(draws, one.mass, one.sites, self.delta, self.C)

    def eps(self, one: Sensitivity, counts: npt.ArrayLike) -> Array:
        """Return the relative error that these counts guarantee; 1 or more guarantees nothing."""
        draws = self._draws(one.values.numpy(), np.asarray(counts, np.float64))
        return eps_of(draws, one.mass, one.sites, self.delta, self.C)

    def choose(self, name: str, scores: Sensitivity, count: int) -> Selection:
        """Return the units of a group that stay, with the scales of their consumers' weights.

        With `rand` and `partial` their number may differ from `count`: how many distinct ones are sampled is random.
        """
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
        """Return the relative error of keeping just these, unscaled: the dropped sensitivity times C."""
        dropped = np.delete(one.values.numpy(), list(chosen.kept))
        return derandomized(dropped, self.C)

    def numbers(self, scores: Sensitivity) -> Tensor:
        """Return the sensitivities."""
        return scores.values

    def settings(self) -> dict[str, Any]:
        """Return the settings as given."""
        return asdict(self)

    def row(self, row: GroupRow, scores: Sensitivity, count: int, chosen: Selection) -> GroupRow:
        """Add the errors of one more step. Only the largest shares carry a guarantee."""
        found = replace(row, after=len(chosen.kept), mass=scores.mass if math.isnan(row.mass) else row.mass)
        if scores.kind != "max":
            return found
        before = [0.0 if math.isnan(error) else error for error in (row.eps, row.dropped)]
        eps, dropped = float(self.eps(scores, count)), self.bound(scores, chosen)
        return replace(found, eps=before[0] + eps, dropped=before[1] + dropped)

    def notes(self, rows: Sequence[GroupRow], samples: int) -> list[str]:
        """Return where the guarantee is vacuous, and whether there were enough samples."""
        if self.sensitivity != "max":
            return [f"{self.sensitivity} sensitivities carry no guarantee before the cut; measure on held-out data"]
        notes = []
        cut = [row for row in rows if row.after < row.before]
        derand = self.select == "derand"
        vacuous = [row for row in cut if (row.dropped if derand else row.eps) >= 1]
        if vacuous:
            bound = "dropped" if derand else "eps"
            notes.append(
                f"in {len(vacuous)} of {len(cut)} cut groups the guaranteed error is vacuous ({bound} >= 1): "
                "there the sizes are a heuristic, not a guarantee; measure the network on held-out data"
            )
        if self.select == "pivotal" and cut:
            notes.append("eps is the guarantee of rand at these sizes; pivotal varies less but has no bound of its own")
        least = samples_needed(self.delta, max(row.before for row in rows))
        if samples < least:
            notes.append(f"{samples} samples are few: delta = {self.delta:g} requires at least {least}")
        return notes

    def _draws(self, s: Array, counts: npt.ArrayLike) -> Array:
        total = s.sum()
        if not total:  # no channel matters, and none needs to be sampled
            return np.full(np.shape(counts), np.inf)
        return draws_for(counts, s / total)


def _whole(draws: Array) -> int:
    return max(1, int(min(float(draws), select.MOST_DRAWS)))
