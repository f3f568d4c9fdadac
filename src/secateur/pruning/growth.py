"""From a budget to group sizes: all groups grow step by step until the budget is spent."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from secateur.channels.graph import ChannelGraph
from secateur.costs.sizes import Sizes
from secateur.errors import SecateurError, UsageError


@dataclass(frozen=True, eq=False)
class Ladder:
    """How one group grows: to counts[i] units once the level falls to levels[i].

    >>> Ladder(counts=np.array([1, 2, 4]), levels=np.array([np.inf, 0.5, 0.1]))
    """

    counts: NDArray[np.int64]  # strictly ascending, from the smallest size to the full group
    levels: NDArray[np.float64]  # non-increasing; the first is infinite

    def __post_init__(self) -> None:
        counts, levels = self.counts, self.levels
        sound = counts.ndim == 1 and counts.shape == levels.shape and counts.size and counts[0] >= 1
        if not sound or (np.diff(counts) <= 0).any() or levels[0] != np.inf or not _falls(levels):
            raise UsageError(
                f"counts {counts} and levels {levels} do not make a ladder",
                remedy="pass ascending counts from 1 up, and as many levels that fall from infinity",
            )


def ladder(levels: ArrayLike, *, at_least: int = 1, round_to: int = 1) -> Ladder:
    """Return the ladder of a group that reaches 1, 2, ..., n units at these levels.

    >>> ladder([9.0, 5.0, 4.0, 1.0]).counts
    array([1, 2, 3, 4])
    >>> ladder([9.0, 5.0, 4.0, 1.0], round_to=2).levels  # to 2 units at the start, to 4 with the third
    array([inf,  4.])

    Args:
        levels: one for each unit, non-increasing; the first does not matter, since one unit always stays.
        at_least: units that stay whatever the budget.
        round_to: the group keeps a multiple of it, or all units; it steps up when the count without rounding is nearer
            to the next multiple, or half way.
    """
    given = np.asarray(levels, np.float64)
    if given.ndim != 1 or not given.size or not _falls(given[1:]):
        raise UsageError(f"the levels are {given}", remedy="pass one for each unit, in falling order")
    if at_least < 1 or round_to < 1:
        raise UsageError(f"at_least is {at_least} and round_to {round_to}", remedy="use whole numbers from 1 up")
    n = given.size
    allowed = np.append(np.arange(round_to, n, round_to), n)
    counts = allowed[allowed >= min(at_least, n)].astype(np.int64)
    half_way = (counts[:-1] + counts[1:] + 1) // 2
    return Ladder(counts, np.append(np.inf, given[half_way - 1]))


class Growth:
    """All steps of all groups in one order, the highest level first; a budget is met by the first of them.

    >>> growth = Growth({"a": ladder([9, 5, 1]), "b": ladder([9, 7, 6])})
    >>> growth.counts(0), growth.counts(3), growth.level(3)
    ({'a': 1, 'b': 1}, {'a': 2, 'b': 3}, 5.0)

    Steps at the same level follow the order of the groups. A larger budget keeps all that a smaller one keeps.
    """

    def __init__(self, ladders: Mapping[str, Ladder]) -> None:
        self.ladders = ladders
        steps = [len(one.counts) - 1 for one in ladders.values()]
        levels = np.concatenate([one.levels[1:] for one in ladders.values()] or [np.zeros(0)])
        order = np.argsort(-levels, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        self.steps = len(order)
        self._levels = [math.inf, *levels[order].tolist()]
        parts = np.split(place, np.cumsum(steps)[:-1]) if steps else []
        self._rungs: dict[str, tuple[list[int], list[int]]] = {
            name: (part.tolist(), one.counts.tolist()) for (name, one), part in zip(ladders.items(), parts, strict=True)
        }

    def counts(self, position: int) -> dict[str, int]:
        """Return the size of each group after the first `position` steps."""
        self._check(position)
        return {name: counts[bisect_left(places, position)] for name, (places, counts) in self._rungs.items()}

    def level(self, position: int) -> float:
        """Return the level of the last step taken; infinite before the first."""
        self._check(position)
        return self._levels[position]

    def without_next(self, position: int) -> Growth:
        """Return the growth without the step that follows a position, and without later ones of the same group."""
        name = next(name for name, (places, _) in self._rungs.items() if position in places)
        one, now = self.ladders[name], self.counts(position)[name]
        return Growth({**self.ladders, name: Ladder(one.counts[one.counts <= now], one.levels[one.counts <= now])})

    def above(self, level: float) -> int:
        """Return the position after all steps above a level."""
        return sum(one > level for one in self._levels[1:])

    def _check(self, position: int) -> None:
        if not 0 <= position <= self.steps:
            raise UsageError(f"there is no position {position}", remedy=f"use one from 0 to {self.steps}")


def largest(growth: Growth, fits: Callable[[int], bool], within: int = 1) -> int:
    """Return the largest position that fits, found by bisection, or -1 if not even position 0 does.

    >>> largest(growth, lambda position: sizes.params(growth.counts(position)) <= 100_000)

    Every position below one that fits should fit too. Where that does not quite hold, the result is still a position
    that was found to fit.

    Args:
        within: the result may be fewer than this many steps below the largest.
    """
    if not fits(0):
        return -1
    good, bad = 0, growth.steps + 1
    while bad - good > within:
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    return good


def allocate(growth: Growth, sizes: Sizes, ceilings: Mapping[str, float]) -> int:
    """Return the last position at which the cut network costs no more than the ceilings.

    >>> position = allocate(growth, sizes, {"params": 100_000, "macs": 2e6})
    >>> growth.counts(position)
    """
    measure = {"params": sizes.params, "macs": sizes.macs}
    for name in ceilings:
        if name not in measure:
            raise UsageError(f"{name!r} cannot be allocated", remedy=f"use {' and '.join(measure)}")
    position = largest(growth, partial(within(sizes, ceilings), growth))
    if position < 0:
        least = {name: measure[name](growth.counts(0)) for name in ceilings}
        whole = {name: measure[name]({}) for name in ceilings}
        raise _unreachable(ceilings, least, whole, ways_out(growth, sizes.graph))
    return position


def fill(growth: Growth, position: int, fits: Callable[[Growth, int], bool]) -> tuple[Growth, int]:
    """Return a growth and a position that spend what a step which is too large has left of the budget.

    >>> growth, position = fill(growth, allocate(growth, sizes, ceilings), within(sizes, ceilings))

    A group whose next step does not fit stays as it is, and the other groups grow on. With steps of one unit little
    is left; with multiples of 8, one step of a residual stream can be a tenth of the network.
    """
    while position < growth.steps:
        growth = growth.without_next(position)
        position = largest(growth, partial(fits, growth))
    return growth, position


def within(sizes: Sizes, ceilings: Mapping[str, float]) -> Callable[[Growth, int], bool]:
    """Return whether the sizes at a position of a growth cost no more than the ceilings, as a function."""

    def fits(growth: Growth, position: int) -> bool:
        counts = growth.counts(position)
        return all(getattr(sizes, name)(counts) <= ceiling for name, ceiling in ceilings.items())

    return fits


def ways_out(growth: Growth, graph: ChannelGraph) -> str:
    """Return what would let more channels be removed, as far as anything would."""
    reasons = {str(reason) for group in graph.groups for reason in group.reasons}
    ways = ["lower at_least or round_to"] if max(growth.counts(0).values(), default=1) > 1 else []
    ways += ["keep fewer layers"] if any(reason.startswith("keep=") for reason in reasons) else []
    ways += ["use output='graph'"] if any("output='graph'" in reason for reason in reasons) else []
    return f"raise the budget; or {', or '.join(ways)}" if ways else "raise the budget"


def _unreachable(
    ceilings: Mapping[str, float], least: Mapping[str, int], whole: Mapping[str, int], remedy: str
) -> SecateurError:
    parts = []
    for name, ceiling in ceilings.items():
        total = max(whole[name], 1)
        enough = math.ceil(10_000 * least[name] / total) / 100  # rounded up, so that asking for it is enough
        asked = f"{ceiling:,.15g} {name} ({100 * ceiling / total:.4g}% of the original)"
        parts.append(f"{asked} may remain, the smallest possible network has {least[name]:,} ({enough:g}%)")
    return SecateurError(f"the budget cannot be met: {'; '.join(parts)}", remedy=remedy)


def _falls(levels: NDArray[np.float64]) -> bool:
    """Whether each is at most the one before it; NaN never is."""
    return bool((levels[1:] <= levels[:-1]).all() and not np.isnan(levels).any())
