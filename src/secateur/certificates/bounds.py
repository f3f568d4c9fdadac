"""Statistical bounds from held-out samples: rates, quantiles, means and accuracy drops."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import optimize, special

from secateur.checks import check_at_least, check_from_zero, check_share
from secateur.errors import SecateurError
from secateur.methods.pfp.bounds import Array

NUISANCE = 0.1  # share of delta that `drop_bound` spends on the rate at which two networks differ
STAKE = 0.9  # largest part of the capital that `mean_bound` puts at risk
FIRST_VARIANCE = 0.01  # that `mean_bound` starts from; any start is valid


def clopper_pearson(k: int, n: int, delta: float) -> float:
    """Return an upper bound on the probability of an event observed `k` times in `n` samples.

    It is exceeded with probability at most `delta`.

    >>> round(clopper_pearson(0, 100, 0.05), 4)
    0.0295
    """
    check_share("delta", delta)
    if not 0 <= k <= n or n < 1:
        raise SecateurError(f"{k} of {n} samples is not a possible count", remedy="pass 0 <= k <= n and n >= 1")
    if k == n:
        return 1.0
    rest = float(special.betaincinv(n - k, k + 1, delta))  # 1 minus the bound: precise also for a tiny delta
    return 1.0 - rest if rest >= 0 else 1.0  # scipy finds no root below about 1e-30


def order_statistic(n: int, level: float, delta: float) -> int | None:
    """Return the rank, from 1, among `n` sorted values that a new value exceeds with probability at most `level`.

    The guarantee fails with probability at most `delta`. None if `n` is too small for any guarantee.

    >>> order_statistic(100, level=0.05, delta=0.05)
    99
    """
    check_at_least("n", n, 0)
    if n < samples_for_order_statistic(level, delta):
        return None
    low, high = 0, n  # P(Bin <= low) <= delta < P(Bin <= high)
    while high - low > 1:
        middle = (low + high) // 2
        if special.betaincc(middle + 1, n - middle, level) <= delta:
            low = middle
        else:
            high = middle
    return n - low


def samples_for_order_statistic(level: float, delta: float) -> int:
    """Return the smallest number of samples for which `order_statistic` guarantees anything.

    >>> samples_for_order_statistic(level=0.05, delta=0.05)
    59
    """
    check_share("level", level)
    check_share("delta", delta)
    return math.ceil(math.log(delta) / math.log1p(-level))


def excess(ratios: Array, level: float, delta: float) -> float:
    """Return the constant C: the ratio of a new sample exceeds it with probability at most `level`.

    Args:
        ratios: `max_j X_j / s_j` of each held-out sample; infinite where a channel with s_j = 0 was active.
        level: share of samples that may exceed C.
        delta: probability that the guarantee fails.

    >>> round(excess(np.linspace(0.5, 1.3, 100), level=0.05, delta=0.05), 3)
    1.292
    """
    values = np.sort(np.asarray(ratios, dtype=np.float64))
    check_from_zero("a ratio", values)
    rank = order_statistic(values.size, level, delta)
    if rank is None:
        raise SecateurError(
            f"{values.size} held-out samples are too few for level {level} and delta {delta}",
            remedy=f"use at least {samples_for_order_statistic(level, delta)} samples, or a larger level or delta",
        )
    return max(1.0, float(values[rank - 1]))


def drop_bound(losses: int, gains: int, n: int, delta: float) -> float:
    """Return an upper bound on P(loss) - P(gain) from `n` pairs, exceeded with probability at most `delta`.

    Of the pairs, `losses` went from right to wrong and `gains` from wrong to right.

    >>> round(drop_bound(30, 10, 10_000, 0.05), 5)
    0.00334

    The exact test of each difference d is inverted. Its nuisance parameter is q, the rate at which a pair changes: q is
    bounded first (Clopper-Pearson, at a tenth of delta), then the largest p-value over that range is taken. For q up to
    1/2 the sum of n outcomes of -1, 0 and 1 is a sum of independent Bernoulli variables, whose mode is within 1 of the
    mean (Darroch), so for d >= (losses - gains + 1) / (n - 1) the p-value grows with q, and the largest q decides.
    Beyond 1/2 the Chernoff bound holds for all q.
    """
    check_share("delta", delta)
    if min(losses, gains) < 0 or losses + gains > n or n < 1:
        raise SecateurError(
            f"{losses} losses and {gains} gains in {n} samples are not possible",
            remedy="pass counts from 0 up with losses + gains <= n",
        )
    most = clopper_pearson(losses + gains, n, NUISANCE * delta)
    rest = delta - NUISANCE * delta
    net, q = losses - gains, min(most, 0.5)
    least = max((net + 1) / (n - 1), -q) if n > 1 else 1.0

    def surplus(d: float) -> float:
        return _net_at_most(net, n, q, d, rest * 1e-9) - rest

    if least >= q or surplus(least) <= 0:
        bound = least
    else:
        bound = q if surplus(q) > 0 else optimize.brentq(surplus, least, q, xtol=1e-14) + 1e-14
    return min(max(bound, _chernoff(net / n, n, rest)) if most > 0.5 else bound, most)


def mean_bound(values: Array, delta: float) -> float:
    """Return an upper bound on the mean of independent values in [0, 1], exceeded with probability at most `delta`.

    >>> round(mean_bound(np.full(1000, 0.1), 0.05), 3)
    0.103

    A bet against each mean m (Waudby-Smith and Ramdas): capital grows by 1 + stake (m - value), with the stake chosen
    from earlier values only. If the mean is at least m, capital reaches 1 / delta with probability at most delta; the
    bound is the least m at which it did. The bound depends on the order: shuffle values that are sorted.
    """
    check_share("delta", delta)
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or not x.size or not ((x >= 0) & (x <= 1)).all():
        raise SecateurError("expected a list of numbers from 0 to 1", remedy="divide the values by their range")
    seen = np.arange(2, x.size + 2)
    variance = (FIRST_VARIANCE + np.cumsum((x - np.cumsum(x) / seen) ** 2)) / seen
    goal = -math.log(delta)
    stakes = np.sqrt(2 * goal / (x.size * np.concatenate([[FIRST_VARIANCE], variance[:-1]])))
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        m = (low + high) / 2
        capital = np.cumsum(np.log1p(np.minimum(stakes, STAKE / (1 - m)) * (m - x)))
        low, high = (low, m) if capital.max() >= goal else (m, high)
    return high


def samples_for_rate(rate: float, limit: float, delta: float) -> int | None:
    """Return about how many samples bring the Clopper-Pearson bound to `limit` at this rate; None if no number does.

    >>> samples_for_rate(0.0, 0.01, 0.05)
    299
    """
    return _fewest(lambda n: clopper_pearson(_count(rate, n), n, delta) <= limit) if rate < limit else None


def samples_for_drop(losses: float, gains: float, limit: float, delta: float) -> int | None:
    """Return about how many samples bring `drop_bound` to `limit` at these rates; None if no number does.

    >>> samples_for_drop(0.003, 0.001, 0.01, 0.05)
    880
    """

    def enough(n: int) -> bool:
        worse = _count(losses, n)
        return drop_bound(worse, min(math.floor(gains * n), n - worse), n, delta) <= limit

    return _fewest(enough) if losses - gains < limit - 1e-12 else None


def _count(rate: float, n: int) -> int:
    return min(n, math.ceil(rate * n - 1e-9))


def _fewest(enough: Callable[[int], bool]) -> int | None:
    """Return the smallest n that is enough, by doubling and bisection; None beyond a hundred million."""
    high = 1
    while not enough(high):
        high *= 2
        if high > 10**8:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _net_at_most(net: int, n: int, q: float, d: float, tail: float) -> float:
    """Return P(losses - gains <= net), at most `2 tail` too large, for P(loss) + P(gain) = q, P(loss) - P(gain) = d."""
    mean, log = n * q, -math.log(tail)
    first = max(0, math.floor(mean - math.sqrt(2 * mean * log)))  # values outside are improbable (Bernstein)
    last = min(n, math.ceil(mean + log / 3 + math.sqrt(log * log / 9 + 2 * mean * log)))
    changed = np.arange(first, last + 1)
    ways = special.gammaln(n + 1) - special.gammaln(changed + 1) - special.gammaln(n - changed + 1)
    chance = np.exp(ways + special.xlogy(changed, q) + special.xlog1py(n - changed, -q))
    worse = (changed + net) // 2
    among = special.betainc(np.maximum(changed - worse, 1), np.maximum(worse + 1, 1), max(0.0, (1 - d / q) / 2))
    return float(chance @ np.where(worse < 0, 0.0, np.where(worse >= changed, 1.0, among))) + 2 * tail


def _chernoff(mean: float, n: int, delta: float) -> float:
    """Return the expectation above which a mean of `n` values in [-1, 1] is this low with probability below `delta`."""
    a, low, high = (1 + mean) / 2, mean, 1.0
    while high - low > 1e-12:
        d = (low + high) / 2
        b = (1 + d) / 2
        apart = special.rel_entr(a, b) + special.rel_entr(1 - a, 1 - b)
        low, high = (low, d) if n * apart >= -math.log(delta) else (d, high)
    return high
