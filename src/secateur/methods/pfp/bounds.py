"""Bounds of the sampled error: the number of draws that an error needs, and the error that some draws guarantee."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

from secateur.checks import check_at_least, check_from_zero, check_positive, check_share
from secateur.errors import SecateurError

Array = npt.NDArray[np.float64]

BLOCK = 2**17  # most numbers in one temporary array, so that it stays in the cache
CLOSE = 1e-12  # a number of draws is found when its logarithm changes by less
CERTAIN = 750.0  # the rate of a channel of probability 1: one draw misses it with probability e^-750, which is 0.0
HOPELESS = 1e300  # any number of draws above this counts as the same
LARGEST = math.log(sys.float_info.max) - 1  # of the logarithm of a number of draws
ROUNDS = 400  # bisection alone needs 50


@dataclass(frozen=True)
class Hybrid:
    """Keep the `k` most sensitive channels unscaled, and draw `draws` times from the rest."""

    k: int
    draws: int


def sample_complexity(eps: float, mass: float, sites: float, delta: float, C: float = 1.0) -> int:
    """Return the number of draws with which every output has an error of at most `eps (z+ + z-)`.

    >>> sample_complexity(0.5, mass=4.0, sites=1000, delta=0.01)
    508

    Args:
        mass: the sum of the group's sensitivities.
        sites: the outputs times positions of the layers that consume the group.
        delta: the probability with which the error may be larger.
        C: the factor by which fresh data may exceed the sensitivities.
    """
    check_positive("eps", eps)
    load = _load(mass, sites, delta, C)
    return _whole_draws((2 / eps + 2 / 3) * (load / eps)) if load > 0 else 1


@overload
def eps_of(draws: float, mass: float, sites: float, delta: float, C: float = 1.0) -> float: ...
@overload
def eps_of(draws: Array, mass: float, sites: float, delta: float, C: float = 1.0) -> Array: ...
def eps_of(draws: float | Array, mass: float, sites: float, delta: float, C: float = 1.0) -> float | Array:
    """Return the error that this many draws guarantee, the inverse of `sample_complexity`; infinite for no draws.

    >>> round(eps_of(508, mass=4.0, sites=1000, delta=0.01), 4)
    0.4997
    """
    load = _load(mass, sites, delta, C)
    counts = np.asarray(draws, dtype=np.float64)
    check_from_zero("draws", counts)
    ratio = np.full(counts.shape, np.inf)
    with np.errstate(over="ignore"):  # an infinite ratio guarantees nothing
        np.divide(load, counts, out=ratio, where=(counts > 0) & np.isfinite(counts))
    ratio[np.isinf(counts)] = 0.0
    eps = ratio / 3 + np.sqrt(ratio) * np.sqrt(ratio / 9 + 2)
    return eps if isinstance(draws, np.ndarray) else float(eps)


@overload
def expected_unique(draws: float, p: Array) -> float: ...
@overload
def expected_unique(draws: Array, p: Array) -> Array: ...
def expected_unique(draws: float | Array, p: Array) -> float | Array:
    """Return the expected number of distinct channels in this many draws, channel j having probability `p[j]`.

    >>> expected_unique(2, np.array([0.5, 0.5]))
    1.5
    """
    counts = np.asarray(draws, dtype=np.float64)
    check_from_zero("draws", counts)
    rates = _rates(p)
    flat = counts.reshape(-1)
    unique = np.empty(flat.size)
    with np.errstate(over="ignore"):
        for rows in _blocks(flat.size, rates.size):
            unique[rows] = -np.expm1(-flat[rows, None] * rates).sum(axis=1)
    return unique.reshape(counts.shape) if isinstance(draws, np.ndarray) else float(unique[0])


def draws_for(unique: npt.ArrayLike, p: Array) -> Array:
    """Return, for each number of distinct channels, how many draws (a real number) give as many on average.

    It is infinite from the number of channels of positive probability on, and where it is too large for a float.

    >>> draws_for([0, 1.5, 2], np.array([0.5, 0.5])).round(6)
    array([ 0.,  2., inf])
    """
    targets = np.asarray(unique, dtype=np.float64)
    check_from_zero("unique", targets)
    rates = np.sort(_rates(p))[::-1]
    distinct, back = np.unique(targets, return_inverse=True)
    draws = np.where(distinct >= rates.size, np.inf, 0.0)
    open_ = (distinct > 0) & (distinct < rates.size)
    if open_.any():
        draws[open_] = np.maximum.accumulate(_solve(distinct[open_], rates))
    return draws[back].reshape(targets.shape)


def hybrid(s: Array, eps: float, sites: float, delta: float, C: float = 1.0) -> Hybrid:
    """Return how many of the most sensitive channels to keep unscaled, by the theorem 'hybrid'; 0 where it never holds.

    >>> hybrid(np.array([1.0] + [0.0005] * 1000), eps=0.1, sites=1, delta=0.5)
    Hybrid(k=1, draws=185)
    """
    values = np.sort(checked_scores(s))[::-1]
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
    """Return the error, as a share of z+ and of z-, of dropping channels of these sensitivities without rescaling.

    >>> derandomized(np.array([0.01, 0.02]), C=1.5)
    0.045
    """
    scores = np.asarray(dropped, dtype=np.float64)
    check_from_zero("a sensitivity", scores)
    _check_excess(C)
    if math.isinf(C):  # even a channel of sensitivity 0 may be active
        return math.inf if scores.size else 0.0
    return float(C * scores.sum())


def samples_needed(delta: float, channels: int, K: float = 1.0) -> int:
    """Return the number of samples that the sensitivities of this many channels need.

    >>> samples_needed(1e-16, channels=64)
    42
    """
    check_share("delta", delta)
    check_at_least("channels", channels, 1)
    check_positive("K", K)
    return math.ceil(K * (math.log(2 * channels) - math.log(delta)))


def _load(mass: float, sites: float, delta: float, C: float) -> float:
    """Return C S ln(8 sites / delta), also for a delta so small that 8 sites / delta overflows."""
    check_from_zero("mass", np.asarray(mass))
    check_at_least("sites", sites, 1)
    check_share("delta", delta)
    _check_excess(C)
    return C * mass * (math.log(8 * sites) - math.log(delta)) if math.isfinite(C) else math.inf


def _whole_draws(draws: float) -> int:
    if not math.isfinite(draws):
        raise SecateurError("the number of draws is infinite", remedy="use a larger eps, or more samples")
    return max(1, math.ceil(draws))


def _rates(p: Array) -> Array:
    """Return -ln(1 - p) for every p > 0: m draws miss such a channel with probability e^(-m rate)."""
    shares = np.asarray(p, dtype=np.float64)
    if shares.ndim != 1 or not ((shares >= 0) & (shares <= 1)).all():
        raise SecateurError("p is not a list of probabilities", remedy="give one number from 0 to 1 for each channel")
    with np.errstate(divide="ignore"):
        rates: Array = -np.log1p(-shares[shares > 0])
    return np.minimum(rates, CERTAIN)


def _blocks(rows: int, columns: int) -> list[slice]:
    """Split `rows` so that a table of one part by `columns` stays small."""
    height = max(1, BLOCK // max(1, columns))
    return [slice(start, min(start + height, rows)) for start in range(0, rows, height)]


def _solve(targets: Array, rates: Array) -> Array:
    """Return the root of U(m) = k for each sorted k, 0 < k < channels, by Newton's method in ln m between two bounds.

    The lower bound is from 1 - e^-x <= x, the upper one from the most likely floor(k) + 1 channels alone.
    """
    tails = np.cumsum(rates[::-1])[::-1]
    below, above = np.ceil(targets).astype(int) - 1, np.floor(targets).astype(int) + 1
    with np.errstate(over="ignore"):  # a channel may be so unlikely that no finite number of draws finds it
        least = np.maximum(targets / tails[0], (targets - below) / tails[below])
    low = np.log(np.maximum(least, np.finfo(np.float64).tiny))
    high = np.log(-np.log1p(-targets / above)) - np.log(rates[above - 1])
    high = np.maximum(low, high)  # for one channel the two are equal except for rounding
    low, high = np.minimum(low, LARGEST), np.minimum(high, LARGEST)
    steps = np.linspace(0, 1, 512)
    even = low.min() + steps * (high.max() - low.min())
    grid = np.sort(np.concatenate([even, np.quantile(np.concatenate([low, high]), steps)]))
    table = expected_unique(np.exp(grid), -np.expm1(-rates))
    guess = np.clip(np.interp(targets, table, grid), low, high)
    found = [
        _newton(guess[rows], low[rows], high[rows], targets[rows], rates) for rows in _blocks(len(targets), len(rates))
    ]
    logarithms = np.concatenate(found)
    return np.where(logarithms >= LARGEST, np.inf, np.exp(logarithms))


def _newton(at: Array, low: Array, high: Array, targets: Array, rates: Array) -> Array:
    """Return the roots from these starting points, bisecting where a step leaves the bounds and every fourth time."""
    at, low, high = at.copy(), low.copy(), high.copy()
    live = np.arange(len(at))
    for turn in range(ROUNDS):
        value, slope = _balance(at[live], targets[live], rates)
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


def _balance(at: Array, targets: Array, rates: Array) -> tuple[Array, Array]:
    """Return ln of (channels drawn beyond the first f) over (channels missed among the first f), and its slope in ln m.

    With f the integer nearest to k it is 0 where U(m) = k, and no digit is lost where U is flat around an integer:
    there both sides are tiny, and U - k would be rounding.
    """
    draws, whole = np.exp(at), np.rint(targets).astype(int)
    tails = np.append(np.cumsum(rates[::-1])[::-1], 0.0)
    # Channels before `start` are certainly drawn in every row, those from `end` on hardly ever: 1 - e^-x is x.
    start, end = np.searchsorted(-rates, [-800 / draws.min(), -1e-20 / draws.max()])
    window = slice(start, end)
    first = np.arange(start, end) < whole[:, None]
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        exponent = -draws[:, None] * rates[window]
        missed = np.exp(exponent, out=np.zeros_like(exponent), where=first)
        drawn = -np.expm1(exponent, out=np.zeros_like(exponent), where=~first)
        rare = draws * tails[np.maximum(whole, end)]
        lost = missed.sum(axis=1) + np.maximum(whole - end, 0) + np.maximum(targets - whole, 0)
        gained = drawn.sum(axis=1) + np.maximum(start - whole, 0) + rare + np.maximum(whole - targets, 0)
        lost_slope = draws * (missed @ rates[window])
        open_rates = tails[np.clip(whole, start, end)] - tails[end]
        gained_slope = draws * np.maximum(open_rates - drawn @ rates[window], 0) + rare
        return np.log(gained) - np.log(lost), gained_slope / gained + lost_slope / lost


def _undrawn(values: Array, rest: Array, draws: Array) -> Array:
    """Return, for each k, how many of the sorted channels from k on are missed on average by draws[k] draws of them."""
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


def _check_excess(C: float) -> None:
    if not C >= 1:
        raise SecateurError(f"the excess constant C is {C}", remedy="give a C of at least 1, as excess() does")


def checked_scores(s: Array) -> Array:
    """Return the sensitivities in float64, or raise an error if they are not a list of numbers from 0 on."""
    scores = np.asarray(s, dtype=np.float64)
    if scores.ndim != 1 or not scores.size or not ((scores >= 0) & np.isfinite(scores)).all():
        raise SecateurError("the sensitivities are not a list of numbers from 0 on", remedy="compute them again")
    return scores
