"""The bounds: how many draws an error asks for, which error some draws give, and what held-out points certify."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

from secateur.errors import SecateurError

Array = npt.NDArray[np.float64]

BLOCK = 2**17  # numbers that one temporary array holds at most: it stays in the cache
CLOSE = 1e-12  # a draw count is found when its logarithm moves by less
CERTAIN = 750.0  # the rate of a channel of probability 1: one draw misses it with probability e^-750, which is 0.0
HOPELESS = 1e300  # more draws than this need no telling apart
ROUNDS = 400  # bisection alone needs 50
NUISANCE = 0.1  # the share of delta that the bound on a drop spends on how often two networks differ at all
STAKE = 0.9  # the part of the capital that the bound on a mean puts at risk at most
FEW = 0.01  # the variance that it starts from; any start is valid


@dataclass(frozen=True)
class Hybrid:
    """Keep the `k` most sensitive channels as they are, and draw `draws` times from the rest."""

    k: int
    draws: int


def sample_complexity(eps: float, mass: float, sites: float, delta: float, C: float = 1.0) -> int:
    """How many draws make every output right to `eps (z+ + z-)`, except with probability `delta`.

    `mass` is the sum of the group's sensitivities; `sites` counts the outputs times patches of its consumers.

    >>> sample_complexity(0.5, mass=4.0, sites=1000, delta=0.01)
    508
    """
    _check_positive("eps", eps)
    load = _load(mass, sites, delta, C)
    return _whole_draws((2 / eps + 2 / 3) * (load / eps)) if load > 0 else 1


@overload
def eps_of(draws: float, mass: float, sites: float, delta: float, C: float = 1.0) -> float: ...
@overload
def eps_of(draws: Array, mass: float, sites: float, delta: float, C: float = 1.0) -> Array: ...
def eps_of(draws: float | Array, mass: float, sites: float, delta: float, C: float = 1.0) -> float | Array:
    """The error that this many draws guarantee: the inverse of `sample_complexity`. No draws: no guarantee.

    >>> round(eps_of(508, mass=4.0, sites=1000, delta=0.01), 4)
    0.4997
    """
    load = _load(mass, sites, delta, C)
    counts = np.asarray(draws, dtype=np.float64)
    _check_from_zero("draws", counts)
    ratio = np.full(counts.shape, np.inf)
    with np.errstate(over="ignore"):  # a ratio too large for a number is a guarantee of nothing
        np.divide(load, counts, out=ratio, where=(counts > 0) & np.isfinite(counts))
    ratio[np.isinf(counts)] = 0.0
    eps = ratio / 3 + np.sqrt(ratio) * np.sqrt(ratio / 9 + 2)
    return eps if isinstance(draws, np.ndarray) else float(eps)


@overload
def expected_unique(draws: float, p: Array) -> float: ...
@overload
def expected_unique(draws: Array, p: Array) -> Array: ...
def expected_unique(draws: float | Array, p: Array) -> float | Array:
    """How many different channels this many draws give on average, channel j having probability `p[j]`.

    >>> expected_unique(2, np.array([0.5, 0.5]))
    1.5
    """
    counts = np.asarray(draws, dtype=np.float64)
    _check_from_zero("draws", counts)
    rates = _rates(p)
    flat = counts.reshape(-1)
    unique = np.empty(flat.size)
    with np.errstate(over="ignore"):
        for rows in _blocks(flat.size, rates.size):
            unique[rows] = -np.expm1(-flat[rows, None] * rates).sum(axis=1)
    return unique.reshape(counts.shape) if isinstance(draws, np.ndarray) else float(unique[0])


def draws_for(unique: npt.ArrayLike, p: Array) -> Array:
    """The fewest draws, as a real number, that give `unique` different channels on average: one for each wish.

    As many as there are channels of positive probability, or more, would take infinitely many.

    >>> draws_for([0, 1.5, 2], np.array([0.5, 0.5])).round(6)
    array([ 0.,  2., inf])
    """
    wishes = np.asarray(unique, dtype=np.float64)
    _check_from_zero("unique", wishes)
    rates = np.sort(_rates(p))[::-1]
    distinct, back = np.unique(wishes, return_inverse=True)
    draws = np.where(distinct >= rates.size, np.inf, 0.0)
    open_ = (distinct > 0) & (distinct < rates.size)
    if open_.any():
        draws[open_] = np.maximum.accumulate(_solve(distinct[open_], rates))
    return draws[back].reshape(wishes.shape)


def hybrid(s: Array, eps: float, sites: float, delta: float, C: float = 1.0) -> Hybrid:
    """How many of the most sensitive channels to keep outright, by the theorem 'hybrid': 0 where it never holds.

    >>> hybrid(np.array([1.0] + [0.0005] * 1000), eps=0.1, sites=1, delta=0.5)
    Hybrid(k=1, draws=185)
    """
    _check_scores(s)
    values = np.sort(np.asarray(s, dtype=np.float64))[::-1]
    rest = np.cumsum(values[::-1])[::-1]  # from the smallest up, so that a rest of zeros is exactly 0
    draws = sample_complexity(eps, float(rest[0]), sites, delta, C)
    r = C * rest
    log = math.log(16 * sites) - math.log(delta)
    with np.errstate(over="ignore"):
        rest_draws = np.minimum(np.ceil((2 * np.minimum(1, r) / eps + 2 / 3) * (r / eps) * log), HOPELESS)
    gap = np.sqrt((math.log(2) - math.log(delta)) / 2 * (float(draws) + rest_draws))
    margin = _undrawn(values, rest, rest_draws) - _undrawn(values, rest[:1], np.array([float(draws)]))[0] - gap
    k = int(np.argmax(margin))
    return Hybrid(k, int(rest_draws[k])) if margin[k] > 0 else Hybrid(0, draws)


def derandomized(dropped: Array, C: float = 1.0) -> float:
    """The error, as a share of z+ and of z-, of dropping channels of these sensitivities and reweighing nothing.

    >>> derandomized(np.array([0.01, 0.02]), C=1.5)
    0.045
    """
    scores = np.asarray(dropped, dtype=np.float64)
    _check_from_zero("a sensitivity", scores)
    _check_excess(C)
    if math.isinf(C):  # even a channel of sensitivity 0 may speak
        return math.inf if scores.size else 0.0
    return float(C * scores.sum())


def points_needed(delta: float, channels: int, K: float = 1.0) -> int:
    """How many sample points the sensitivities of this many channels ask for.

    >>> points_needed(1e-16, channels=64)
    42
    """
    _check_share("delta", delta)
    _check_at_least("channels", channels, 1)
    _check_positive("K", K)
    return math.ceil(K * (math.log(2 * channels) - math.log(delta)))


def clopper_pearson(k: int, n: int, delta: float) -> float:
    """What a probability is at most, seen `k` times in `n` points, except with probability `delta`.

    >>> round(clopper_pearson(0, 100, 0.05), 4)
    0.0295
    """
    _check_share("delta", delta)
    if not 0 <= k <= n or n < 1:
        raise SecateurError(f"{k} of {n} points is no count", remedy="give 0 <= k <= n, and n of at least 1")
    if k == n:
        return 1.0
    rest = float(special.betaincinv(n - k, k + 1, delta))  # 1 minus the bound: right also where delta is tiny
    return 1.0 - rest if rest >= 0 else 1.0  # scipy finds no root where it is below 1e-30 or so


def order_statistic(n: int, level: float, delta: float) -> int | None:
    """Which of `n` sorted values (from 1) a fresh one exceeds with probability at most `level`, except for `delta`.

    None where `n` is too small: even the largest value promises nothing then.

    >>> order_statistic(100, level=0.05, delta=0.05)
    99
    """
    _check_at_least("n", n, 0)
    if n < points_for_order_statistic(level, delta):
        return None
    low, high = 0, n  # P(Bin <= low) <= delta < P(Bin <= high)
    while high - low > 1:
        middle = (low + high) // 2
        if special.betaincc(middle + 1, n - middle, level) <= delta:
            low = middle
        else:
            high = middle
    return n - low


def points_for_order_statistic(level: float, delta: float) -> int:
    """The fewest points for which `order_statistic` promises something.

    >>> points_for_order_statistic(level=0.05, delta=0.05)
    59
    """
    _check_share("level", level)
    _check_share("delta", delta)
    return math.ceil(math.log(delta) / math.log1p(-level))


def excess(ratios: Array, level: float, delta: float) -> float:
    """The constant C, from held-out points: a fresh point's ratio exceeds it with probability at most `level`.

    Each ratio is one point's `max_j X_j / s_j`; infinite where a channel that was silent on the sample spoke.

    >>> round(excess(np.linspace(0.5, 1.3, 100), level=0.05, delta=0.05), 3)
    1.292
    """
    values = np.sort(np.asarray(ratios, dtype=np.float64))
    _check_from_zero("a ratio", values)
    rank = order_statistic(values.size, level, delta)
    if rank is None:
        raise SecateurError(
            f"{values.size} held-out points are too few for level {level} and delta {delta}",
            remedy=f"give at least {points_for_order_statistic(level, delta)} points, or a larger level or delta",
        )
    return max(1.0, float(values[rank - 1]))


def drop_bound(losses: int, gains: int, n: int, delta: float) -> float:
    """What a difference of two rates is at most, from `n` pairs, except with probability `delta`.

    Of the pairs, `losses` got worse and `gains` better; the bound is on P(worse) - P(better).

    >>> round(drop_bound(30, 10, 10_000, 0.05), 5)
    0.00334

    The exact test of each difference d, inverted. Its unknown is q, how often a pair changes at all: q is bounded first
    (Clopper-Pearson, at a tenth of delta), then the largest p-value over that range is taken. For q up to 1/2 the sum
    of n outcomes of -1, 0 and 1 is a sum of independent coins, whose mode is within 1 of the mean (Darroch), so for
    d >= (losses - gains + 1) / (n - 1) the p-value grows with q, and the largest q decides. Beyond 1/2 the Chernoff
    bound holds for all q.
    """
    _check_share("delta", delta)
    if min(losses, gains) < 0 or losses + gains > n or n < 1:
        raise SecateurError(f"{losses} losses and {gains} gains in {n} points are no counts", remedy="count again")
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
    """What a mean is at most, from independent values between 0 and 1, except with probability `delta`.

    >>> round(mean_bound(np.full(1000, 0.1), 0.05), 3)
    0.103

    A fair bet against each mean m: capital grows by 1 + stake (m - value), the stake chosen from earlier values only
    (Waudby-Smith and Ramdas). Where the mean is at least m, capital reaches 1 / delta with probability at most delta;
    the bound is the least m at which it did. It uses the order, so values that come sorted must be shuffled first.
    """
    _check_share("delta", delta)
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or not x.size or not ((x >= 0) & (x <= 1)).all():
        raise SecateurError("the values are not a list of numbers from 0 to 1", remedy="divide them by their range")
    seen = np.arange(2, x.size + 2)
    variance = (FEW + np.cumsum((x - np.cumsum(x) / seen) ** 2)) / seen
    goal = -math.log(delta)
    stakes = np.sqrt(2 * goal / (x.size * np.concatenate([[FEW], variance[:-1]])))
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        m = (low + high) / 2
        capital = np.cumsum(np.log1p(np.minimum(stakes, STAKE / (1 - m)) * (m - x)))
        low, high = (low, m) if capital.max() >= goal else (m, high)
    return high


def points_for_rate(rate: float, limit: float, delta: float) -> int | None:
    """About the fewest points whose Clopper-Pearson bound is at most `limit` at this rate; None if no number is.

    >>> points_for_rate(0.0, 0.01, 0.05)
    299
    """
    return _fewest(lambda n: clopper_pearson(_count(rate, n), n, delta) <= limit) if rate < limit else None


def points_for_drop(losses: float, gains: float, limit: float, delta: float) -> int | None:
    """About the fewest points whose `drop_bound` is at most `limit` at these rates; None if no number is.

    >>> points_for_drop(0.003, 0.001, 0.01, 0.05)
    880
    """

    def enough(n: int) -> bool:
        worse = _count(losses, n)
        return drop_bound(worse, min(math.floor(gains * n), n - worse), n, delta) <= limit

    return _fewest(enough) if losses - gains < limit - 1e-12 else None


def _count(rate: float, n: int) -> int:
    return min(n, math.ceil(rate * n - 1e-9))


def _fewest(enough: Callable[[int], bool]) -> int | None:
    """The n at which `enough` begins to hold, found by doubling and halving; None beyond a hundred million."""
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
    """P(losses - gains <= net) where P(loss) + P(gain) = q and P(loss) - P(gain) = d, at most `2 tail` too large."""
    mean, log = n * q, -math.log(tail)
    first = max(0, math.floor(mean - math.sqrt(2 * mean * log)))  # what lies outside is improbable (Bernstein)
    last = min(n, math.ceil(mean + log / 3 + math.sqrt(log * log / 9 + 2 * mean * log)))
    changed = np.arange(first, last + 1)
    ways = special.gammaln(n + 1) - special.gammaln(changed + 1) - special.gammaln(n - changed + 1)
    chance = np.exp(ways + special.xlogy(changed, q) + special.xlog1py(n - changed, -q))
    worse = (changed + net) // 2
    among = special.betainc(np.maximum(changed - worse, 1), np.maximum(worse + 1, 1), max(0.0, (1 - d / q) / 2))
    return float(chance @ np.where(worse < 0, 0.0, np.where(worse >= changed, 1.0, among))) + 2 * tail


def _chernoff(mean: float, n: int, delta: float) -> float:
    """The least expectation above which a mean of `n` values from -1 to 1 comes out so low with probability `delta`."""
    a, low, high = (1 + mean) / 2, mean, 1.0
    while high - low > 1e-12:
        d = (low + high) / 2
        b = (1 + d) / 2
        apart = special.rel_entr(a, b) + special.rel_entr(1 - a, 1 - b)
        low, high = (low, d) if n * apart >= -math.log(delta) else (d, high)
    return high


def _load(mass: float, sites: float, delta: float, C: float) -> float:
    """C S ln(8 sites / delta), for deltas so small that 8 sites / delta is no number."""
    _check_from_zero("mass", np.asarray(mass))
    _check_at_least("sites", sites, 1)
    _check_share("delta", delta)
    _check_excess(C)
    return C * mass * (math.log(8 * sites) - math.log(delta)) if math.isfinite(C) else math.inf


def _whole_draws(draws: float) -> int:
    if not math.isfinite(draws):
        raise SecateurError("the number of draws is infinite", remedy="use a larger eps, or more sample points")
    return max(1, math.ceil(draws))


def _rates(p: Array) -> Array:
    """-ln(1 - p) of the channels that can be drawn: channel j is missed by m draws with probability e^(-m rate)."""
    shares = np.asarray(p, dtype=np.float64)
    if shares.ndim != 1 or not ((shares >= 0) & (shares <= 1)).all():
        raise SecateurError("p is not a list of probabilities", remedy="give one number from 0 to 1 per channel")
    with np.errstate(divide="ignore"):
        rates: Array = -np.log1p(-shares[shares > 0])
    return np.minimum(rates, CERTAIN)


def _blocks(rows: int, columns: int) -> list[slice]:
    """Cut `rows` so that a table of one part by `columns` stays small."""
    height = max(1, BLOCK // max(1, columns))
    return [slice(start, min(start + height, rows)) for start in range(0, rows, height)]


def _solve(wishes: Array, rates: Array) -> Array:
    """The root of U(m) = k for each sorted k, 0 < k < channels: Newton's method in ln m between two bounds.

    The lower bound is from 1 - e^-x <= x, the upper one from the most likely floor(k) + 1 channels alone.
    """
    tails = np.cumsum(rates[::-1])[::-1]
    below, above = np.ceil(wishes).astype(int) - 1, np.floor(wishes).astype(int) + 1
    least = np.maximum(wishes / tails[0], (wishes - below) / tails[below])
    low = np.log(np.maximum(least, np.finfo(np.float64).tiny))
    high = np.log(-np.log1p(-wishes / above)) - np.log(rates[above - 1])
    high = np.maximum(low, high)  # one channel: the two are equal but for rounding
    steps = np.linspace(0, 1, 512)
    even = low.min() + steps * (high.max() - low.min())
    grid = np.sort(np.concatenate([even, np.quantile(np.concatenate([low, high]), steps)]))
    table = expected_unique(np.exp(grid), -np.expm1(-rates))
    guess = np.clip(np.interp(wishes, table, grid), low, high)
    found = [
        _newton(guess[rows], low[rows], high[rows], wishes[rows], rates) for rows in _blocks(len(wishes), len(rates))
    ]
    return np.exp(np.concatenate(found))


def _newton(at: Array, low: Array, high: Array, wishes: Array, rates: Array) -> Array:
    """Move each point to its root, with a halving of its bounds where a step leaves them and every fourth time."""
    at, low, high = at.copy(), low.copy(), high.copy()
    live = np.arange(len(at))
    for turn in range(ROUNDS):
        value, slope = _balance(at[live], wishes[live], rates)
        high[live] = np.where(value >= 0, at[live], high[live])
        low[live] = np.where(value < 0, at[live], low[live])
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            there = at[live] - value / slope
        middle = (low[live] + high[live]) / 2
        inside = (there >= low[live]) & (there <= high[live]) & (turn % 4 < 3)
        there = np.where(inside, there, middle)
        done = (inside & (np.abs(there - at[live]) < CLOSE)) | (high[live] - low[live] < CLOSE)
        at[live] = there
        live = live[~done]
        if not live.size:
            break
    return at


def _balance(at: Array, wishes: Array, rates: Array) -> tuple[Array, Array]:
    """ln of (channels gained beyond the first f) over (channels missed among the first f), and its slope in ln m.

    With f the whole number nearest to k it is 0 where U(m) = k, and no digit is lost where U is flat around a whole
    number: there both sides are tiny, and U - k would be rounding.
    """
    draws, whole = np.exp(at), np.rint(wishes).astype(int)
    tails = np.append(np.cumsum(rates[::-1])[::-1], 0.0)
    # Channels before `start` are drawn for sure in every row, those from `end` on hardly ever: 1 - e^-x is x.
    start, end = np.searchsorted(-rates, [-800 / draws.min(), -1e-20 / draws.max()])
    window = slice(start, end)
    first = np.arange(start, end) < whole[:, None]
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        exponent = -draws[:, None] * rates[window]
        missed = np.exp(exponent, out=np.zeros_like(exponent), where=first)
        drawn = -np.expm1(exponent, out=np.zeros_like(exponent), where=~first)
        rare = draws * tails[np.maximum(whole, end)]
        lost = missed.sum(axis=1) + np.maximum(whole - end, 0) + np.maximum(wishes - whole, 0)
        gained = drawn.sum(axis=1) + np.maximum(start - whole, 0) + rare + np.maximum(whole - wishes, 0)
        lost_slope = draws * (missed @ rates[window])
        open_rates = tails[np.clip(whole, start, end)] - tails[end]
        gained_slope = draws * np.maximum(open_rates - drawn @ rates[window], 0) + rare
        return np.log(gained) - np.log(lost), gained_slope / gained + lost_slope / lost


def _undrawn(values: Array, rest: Array, draws: Array) -> Array:
    """For each k: how many of the sorted channels from k on are missed on average by draws[k] draws among them."""
    total = np.where(rest > 0, rest, 1.0)
    missed = np.empty(rest.size)
    with np.errstate(divide="ignore", over="ignore"):  # the last channel left has probability 1
        for rows in _blocks(rest.size, values.size):
            columns = np.arange(rows.start, values.size)
            among = columns >= np.arange(rows.start, rows.stop)[:, None]
            logs = np.log1p(-np.where(among, values[columns] / total[rows, None], 0.0))
            chance = np.exp(np.where(draws[rows, None] > 0, draws[rows, None] * logs, 0.0))
            missed[rows] = np.where(among, chance, 0.0).sum(axis=1)
    return missed


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise SecateurError(f"{name} is {value}", remedy=f"give {name} as a number above 0")


def _check_share(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise SecateurError(f"{name} is {value}", remedy=f"give {name} as a number between 0 and 1, both excluded")


def _check_at_least(name: str, value: float, least: int) -> None:
    if not least <= value < math.inf:
        raise SecateurError(f"{name} is {value}", remedy=f"give {name} as a number of at least {least}")


def _check_excess(C: float) -> None:
    if not C >= 1:
        raise SecateurError(f"the excess constant C is {C}", remedy="give a C of at least 1, as excess() does")


def _check_from_zero(name: str, values: Array) -> None:
    if not (values >= 0).all():
        raise SecateurError(f"{name} is negative or no number", remedy="give numbers from 0 on")


def _check_scores(s: Array) -> None:
    scores = np.asarray(s)
    if scores.ndim != 1 or not scores.size or not ((scores >= 0) & np.isfinite(scores)).all():
        raise SecateurError("the sensitivities are not a list of numbers from 0 on", remedy="compute them again")
