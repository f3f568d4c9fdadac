"""From counts and errors to statements: the bound that fits each, and the sentence that says it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from secateur.bounds import (
    clopper_pearson,
    drop_bound,
    mean_bound,
    order_statistic,
    points_for_drop,
    points_for_order_statistic,
    points_for_rate,
)
from secateur.certificate import Kind, Statement, number, percent

NOTHING = 0.99  # a bound from here on says nothing
USEFUL = 0.5  # and this is what more points should bring it to


@dataclass(frozen=True)
class Sample:
    """So many held-out points, and the probability that a statement may be false.

    >>> print(Sample(2000, delta=1e-3).disagreement(11))
    """

    points: int
    delta: float
    chosen_from: int = 1

    @property
    def spent(self) -> float:
        """What each bound is computed with, if the best of several networks was chosen on these points."""
        return self.delta / self.chosen_from

    def disagreement(self, k: int) -> Statement:
        """How often two classifiers differ, which they did on k points."""
        words = "the two networks choose different classes for at most {} of all inputs"
        return self._rate("disagreement", k, words, "the two networks choose the same class")

    def error_above(self, eps: float, errors: Sequence[float]) -> Statement:
        """How often the relative error of the outputs is above eps."""
        words = f"the outputs are off by more than {100 * eps:g} % (relative) for at most {{}} of all inputs"
        topic = f"the outputs are off by at most {100 * eps:g} % (relative)"
        return self._rate("error above", sum(one > eps for one in errors), words, topic, eps)

    def drop(self, losses: int, gains: int) -> Statement:
        """By how much the share of right answers falls, with so many answers lost and so many gained."""
        n = self.points
        bound = drop_bound(losses, gains, n, self.spent)
        seen = f"(seen: {100 * (losses - gains) / n:.3g}; {losses:,} right answers lost, {gains:,} gained)"
        claim = f"accuracy drops by at most {number(100 * bound)} percentage points {seen}"
        if bound < 0:
            claim = f"accuracy rises by at least {number(100 * bound)[1:]} percentage points {seen}"
        if bound >= NOTHING:
            need = points_for_drop(losses / n, gains / n, USEFUL, self.spent)
            claim = f"nothing can be said of the drop in accuracy {seen}: {_need(need)}"
        return self._state("drop", claim, bound, (losses - gains) / n, self.spent, says=bound < NOTHING)

    def error(self, errors: Sequence[float], level: float) -> Statement:
        """The relative error of the outputs that is exceeded for a share `level` of inputs at most."""
        words = "the outputs are off by at most {} (relative)", "how far the outputs are off"
        return self._at_level("error", errors, level, self.spent, words, percent)

    def change(self, changes: Sequence[float], level: float) -> Statement:
        """The change of an output that is exceeded for a share `level` of inputs at most."""
        words = "no output changes by more than {}", "how much an output changes"
        return self._at_level("change", changes, level, self.spent, words, number)

    def layer(self, name: str, errors: Sequence[float], level: float, layers: int) -> Statement:
        """As `error`, for one of several layers that share delta."""
        words = f"{name} is off by at most {{}} of z+ + z-", f"how far {name} is off"
        return self._at_level("layer", errors, level, self.spent / layers, words, percent, layer=name)

    def mean(
        self, kind: Literal["mean change", "mean squared change"], values: Sequence[float], most: float
    ) -> Statement:
        """What the mean of values between 0 and `most` is at most."""
        order = np.random.default_rng(0).permutation(len(values))  # points may come sorted, and the bound minds that
        bound = most * mean_bound(np.minimum(1.0, np.asarray(values)[order] / most), self.spent)
        observed = float(np.mean(values))
        claim = f"the {kind} of an output is at most {number(bound)} (seen: {observed:.3g})"
        if bound >= NOTHING * most:
            claim = f"nothing can be said of the {kind} of an output (seen: {observed:.3g}): it is near its range"
        return self._state(kind, claim, bound, observed, self.spent, says=bound < NOTHING * most)

    def _rate(self, kind: Kind, k: int, words: str, topic: str, eps: float | None = None) -> Statement:
        bound = clopper_pearson(k, self.points, self.spent)
        claim = f"{words.format(percent(bound))} (seen: {k:,})"
        if bound >= NOTHING:
            need = _need(points_for_rate(k / self.points, USEFUL, self.spent))
            claim = f"nothing can be said of how often {topic} (not so: {k:,}): {need}"
        return self._state(kind, claim, bound, k / self.points, self.spent, says=bound < NOTHING, eps=eps)

    def _at_level(
        self,
        kind: Kind,
        values: Sequence[float],
        level: float,
        spent: float,
        words: tuple[str, str],
        written: Callable[[float], str],
        layer: str | None = None,
    ) -> Statement:
        rank = order_statistic(len(values), level, spent)
        bound = math.inf if rank is None else sorted(values)[rank - 1]
        inputs = f"for all but {100 * level:g} % of inputs"
        claim = f"{words[0].format(written(bound))} {inputs}"
        if rank is None:
            claim = f"nothing can be said of {words[1]} {inputs}: {_need(points_for_order_statistic(level, spent))}"
        elif math.isinf(bound):
            claim = f"nothing can be said of {words[1]} {inputs}: what it is measured against was 0 too often"
        observed = float(np.median(values))
        return self._state(kind, claim, bound, observed, spent, says=math.isfinite(bound), level=level, layer=layer)

    def _state(
        self, kind: Kind, claim: str, bound: float, observed: float, spent: float, *, says: bool, **more: Any
    ) -> Statement:
        return Statement(
            kind=kind,
            claim=claim,
            bound=bound if says else None,
            observed=observed if math.isfinite(observed) else None,
            delta=self.delta,
            spent=spent,
            points=self.points,
            **more,
        )


def _need(points: int | None) -> str:
    return f"about {points:,} points would do" if points else "more points do not help while it is seen so often"
