"""From counts and errors to statements: the bound of each kind, and the sentence that states it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from secateur.certificates.bounds import (
    clopper_pearson,
    drop_bound,
    mean_bound,
    order_statistic,
    samples_for_drop,
    samples_for_order_statistic,
    samples_for_rate,
)
from secateur.certificates.certificate import Kind, Statement, number, percent

VACUOUS = 0.99  # a bound from here on says nothing
USEFUL = 0.5  # the bound that the recommended number of samples would reach


@dataclass(frozen=True)
class Sample:
    """A number of held-out samples, and the probability that a statement from them may be false.

    >>> print(Sample(2000, delta=1e-3).disagreement(11))
    """

    samples: int
    delta: float
    chosen_from: int = 1

    @property
    def spent(self) -> float:
        """The delta of each bound: a share of it if the best of several networks was chosen on these samples."""
        return self.delta / self.chosen_from

    def disagreement(self, k: int) -> Statement:
        """Bound how often two classifiers differ, which they did on k samples."""
        words = "the two networks choose different classes for at most {} of all inputs"
        return self._rate("disagreement", k, words, "the rate of different classes")

    def error_above(self, eps: float, errors: Sequence[float]) -> Statement:
        """Bound how often the relative error of the outputs exceeds eps."""
        words = f"the relative error of the outputs exceeds {100 * eps:g} % for at most {{}} of all inputs"
        topic = f"the rate of relative errors above {100 * eps:g} %"
        return self._rate("error above", sum(one > eps for one in errors), words, topic, eps)

    def drop(self, losses: int, gains: int) -> Statement:
        """Bound the drop in accuracy, from the numbers of correct answers that were lost and gained."""
        n = self.samples
        bound = drop_bound(losses, gains, n, self.spent)
        observed = f"(observed: {100 * (losses - gains) / n:.3g}; {losses:,} correct answers lost, {gains:,} gained)"
        claim = f"accuracy drops by at most {number(100 * bound)} percentage points {observed}"
        if bound < 0:
            claim = f"accuracy rises by at least {number(100 * bound)[1:]} percentage points {observed}"
        if bound >= VACUOUS:
            need = samples_for_drop(losses / n, gains / n, USEFUL, self.spent)
            claim = f"there is no bound on the drop in accuracy {observed}: {_need(need)}"
        return self._state("drop", claim, bound, (losses - gains) / n, self.spent, valid=bound < VACUOUS)

    def error(self, errors: Sequence[float], level: float) -> Statement:
        """Bound the relative error of the outputs for all but a share `level` of inputs."""
        return self._quantile("error", errors, level, self.spent, "the relative error of the outputs", percent)

    def change(self, changes: Sequence[float], level: float) -> Statement:
        """Bound the largest change of an output for all but a share `level` of inputs."""
        return self._quantile("change", changes, level, self.spent, "the largest change of an output", number)

    def layer(self, name: str, errors: Sequence[float], level: float, layers: int) -> Statement:
        """Bound the error of one of several layers that share delta, as `error` does for the outputs."""
        topic = f"the error of {name} relative to z+ + z-"
        return self._quantile("layer", errors, level, self.spent / layers, topic, percent, layer=name)

    def mean(
        self, kind: Literal["mean change", "mean squared change"], values: Sequence[float], most: float
    ) -> Statement:
        """Bound the mean of values between 0 and `most`."""
        bound = most * self._mean_bound(np.asarray(values) / most)
        observed = float(np.mean(values))
        claim = f"the {kind} of an output is at most {number(bound)} (observed: {observed:.3g})"
        if bound >= VACUOUS * most:
            claim = f"there is no bound on the {kind} of an output (observed: {observed:.3g}): it is near its range"
        return self._state(kind, claim, bound, observed, self.spent, valid=bound < VACUOUS * most)

    def pixel_disagreement(self, shares: Sequence[float]) -> Statement:
        """Bound the share of pixels with another class, averaged over images."""
        bound, observed = self._mean_bound(shares), float(np.mean(shares))
        claim = f"on average at most {percent(bound)} of the pixels of an image get another class"
        if bound >= VACUOUS:
            claim = "there is no bound on the share of pixels with another class"
        claim += f" (observed: {100 * observed:.3g} %)"
        return self._state("pixel disagreement", claim, bound, observed, self.spent, valid=bound < VACUOUS)

    def pixel_drop(self, before: Sequence[float], after: Sequence[float]) -> Statement:
        """Bound the drop in pixel accuracy, averaged over images, from that of both networks for each image."""
        drops = np.asarray(before) - np.asarray(after)
        bound, observed = 2 * self._mean_bound((drops + 1) / 2) - 1, float(drops.mean())
        change = f"drops by at most {number(100 * bound)}"
        if bound < 0:
            change = f"rises by at least {number(100 * bound)[1:]}"
        claim = f"pixel accuracy, averaged over images, {change} percentage points"
        if bound >= VACUOUS:
            claim = "there is no bound on the drop in pixel accuracy"
        claim += f" (observed: {100 * observed:.3g})"
        return self._state("pixel drop", claim, bound, observed, self.spent, valid=bound < VACUOUS)

    def at_least(
        self, kind: Literal["map overlap", "recall", "precision"], values: Sequence[float], words: str
    ) -> Statement:
        """Bound the mean of values between 0 and 1 from below."""
        gap, observed = self._mean_bound(1 - np.asarray(values)), float(np.mean(values))
        claim = f"{words} is on average at least {100 - float(percent(gap).removesuffix(' %')):.5g} %"
        if gap >= VACUOUS:
            claim = f"there is no bound on {words}"
        claim += f" (observed: {100 * observed:.3g} %)"
        return self._state(kind, claim, 1 - gap, observed, self.spent, valid=gap < VACUOUS)

    def _mean_bound(self, values: Any) -> float:
        """Bound the mean of values between 0 and 1 from above; samples may come sorted, and the bound depends on it."""
        given = np.clip(np.asarray(values, dtype=np.float64), 0.0, 1.0)  # rounding may leave the range
        return mean_bound(given[np.random.default_rng(0).permutation(len(given))], self.spent)

    def _rate(self, kind: Kind, k: int, words: str, topic: str, eps: float | None = None) -> Statement:
        bound = clopper_pearson(k, self.samples, self.spent)
        claim = f"{words.format(percent(bound))} (observed: {k:,})"
        if bound >= VACUOUS:
            need = _need(samples_for_rate(k / self.samples, USEFUL, self.spent))
            claim = f"there is no bound on {topic} (observed: {k:,}): {need}"
        return self._state(kind, claim, bound, k / self.samples, self.spent, valid=bound < VACUOUS, eps=eps)

    def _quantile(
        self,
        kind: Kind,
        values: Sequence[float],
        level: float,
        spent: float,
        topic: str,
        written: Callable[[float], str],
        layer: str | None = None,
    ) -> Statement:
        rank = order_statistic(len(values), level, spent)
        bound = math.inf if rank is None else sorted(values)[rank - 1]
        inputs = f"for all but {100 * level:g} % of inputs"
        claim = f"{topic} is at most {written(bound)} {inputs}"
        if rank is None:
            claim = f"there is no bound on {topic} {inputs}: {_need(samples_for_order_statistic(level, spent))}"
        elif math.isinf(bound):
            claim = f"there is no bound on {topic} {inputs}: the original value was 0 too often"
        observed = float(np.median(values))
        return self._state(kind, claim, bound, observed, spent, valid=math.isfinite(bound), level=level, layer=layer)

    def _state(
        self, kind: Kind, claim: str, bound: float, observed: float, spent: float, *, valid: bool, **more: Any
    ) -> Statement:
        return Statement(
            kind=kind,
            claim=claim,
            bound=bound if valid else None,
            observed=observed if math.isfinite(observed) else None,
            delta=self.delta,
            spent=spent,
            samples=self.samples,
            **more,
        )


def _need(samples: int | None) -> str:
    return f"about {samples:,} samples are needed" if samples else "more samples do not help at this observed rate"
