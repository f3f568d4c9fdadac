"""Selection of channels by their sensitivities, with the factors for the weights of their consumers."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
from scipy import stats

from secateur.errors import SecateurError
from secateur.methods.pfp.bounds import Array, checked_scores
from secateur.methods.selection import Selection

Counts = npt.NDArray[np.int64]

ONE_BY_ONE = 10**6  # up to here every draw has a random number of its own
MOST_DRAWS = 10**12  # beyond, scipy's binomial quantile is wrong


def generator(seed: int, name: str) -> np.random.Generator:
    """Return the random generator of one group, which depends on the seed and its name, not on the other groups.

    >>> generator(0, "conv1").random() == generator(0, "conv1").random()
    True
    """
    if seed < 0:
        raise SecateurError(f"the seed is {seed}", layer=name, remedy="give a seed of 0 or more")
    digest = hashlib.sha256(name.encode()).digest()
    words = [int.from_bytes(digest[i : i + 4], "big") for i in range(0, len(digest), 4)]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([*words, seed])))


def rand(s: Array, draws: int, rng: np.random.Generator) -> Selection:
    """Sample channels with replacement, each with a probability p proportional to its sensitivity.

    The sampled channels stay, scaled by count / (draws p), so that every sum over channels is unbiased. Up to a million
    draws, fewer draws from the same generator are the first of more draws; beyond, the counts come from conditional
    binomial distributions, and this nesting is lost. Where all sensitivities are 0, the first `draws` channels stay,
    unscaled.

    >>> rand(np.array([0.5, 0.0, 0.5]), draws=100, rng=generator(0, "conv1")).kept
    (0, 2)
    """
    return partial(s, 0, draws, rng)


def partial(s: Array, k: int, draws: int, rng: np.random.Generator) -> Selection:
    """Keep the `k` largest unscaled, and sample from the rest as `rand` does.

    If the rest has no sensitivity, it is not sampled; if all sensitivities are 0, the first `k + draws` stay.

    >>> partial(np.array([0.1, 0.9, 0.1]), k=1, draws=100, rng=generator(0, "conv1")).kept
    (0, 1, 2)
    """
    scores = checked_scores(s)
    _check_range("k", k, 0, scores.size)
    _check_range("draws", draws, 1, MOST_DRAWS)
    if not scores.any():
        return derand(scores, min(k + draws, scores.size))
    top = _descending(scores)[:k]
    scales = np.zeros(scores.size)
    scales[top] = 1.0
    rest = scores.copy()
    rest[top] = 0.0
    if rest.any():
        drawable = np.flatnonzero(rest)
        scales[drawable] = _drawn_scales(rest[drawable], draws, rng)
    return _selection(np.flatnonzero(scales), scales)


def derand(s: Array, count: int) -> Selection:
    """Keep the `count` largest, unscaled; among equals, the first.

    >>> derand(np.array([0.2, 0.9, 0.2]), count=2).kept
    (0, 1)
    """
    scores = checked_scores(s)
    _check_range("count", count, 1, scores.size)
    return _selection(_descending(scores)[:count], np.ones(scores.size))


def pivotal(s: Array, count: int, rng: np.random.Generator) -> Selection:
    """Sample exactly `count` channels, each with probability pi = min(1, tau s), and scale them by 1 / pi.

    Every sum over channels is unbiased and varies less than with `rand` at the same size. If `count` covers every
    channel of positive sensitivity, these and the first of the others stay, unscaled.

    >>> pivotal(np.array([0.2, 0.9, 0.2, 0.2]), count=2, rng=generator(0, "conv1")).kept
    (0, 1)
    """
    scores = checked_scores(s)
    _check_range("count", count, 1, scores.size)
    if count >= np.count_nonzero(scores):
        return derand(scores, count)
    chances = _inclusion(scores, count)
    taken = np.flatnonzero(chances >= 1)
    open_ = np.flatnonzero((chances > 0) & (chances < 1))
    drawn = _duels(chances[open_], count - taken.size, rng.random(open_.size))
    return _selection(np.concatenate([taken, open_[drawn]]), 1 / np.where(chances > 0, chances, 1.0))


def _inclusion(s: Array, count: int) -> Array:
    """Return the probabilities min(1, tau s) that sum to `count`, if more sensitivities than that are positive."""
    order = _descending(s)
    values = s[order]
    tails = np.cumsum(values[::-1])[::-1]
    left = count - np.arange(s.size)
    sure = int(np.argmax(left * values < tails))  # the number of channels with probability 1; the others share the rest
    chances = np.ones(s.size)
    chances[order[sure:]] = np.minimum(left[sure] * (values[sure:] / tails[sure]), 1.0)
    return chances


def _drawn_scales(values: Array, draws: int, rng: np.random.Generator) -> Array:
    """Return count / (draws p) for positive sensitivities, 0 for the channels not sampled."""
    sums = np.cumsum(values)
    counts = _counts_one_by_one(sums, draws, rng) if draws <= ONE_BY_ONE else _counts_at_once(values, draws, rng)
    with np.errstate(over="ignore"):
        return np.where(counts > 0, counts / draws * (sums[-1] / values), 0.0)


def _counts_one_by_one(sums: Array, draws: int, rng: np.random.Generator) -> Counts:
    """Return how often each channel is drawn: a random number falls into its interval of the cumulative sums."""
    where = np.searchsorted(sums, rng.random(draws) * sums[-1], side="right")
    return np.bincount(np.minimum(where, sums.size - 1), minlength=sums.size)


def _counts_at_once(values: Array, draws: int, rng: np.random.Generator) -> Counts:
    """Return counts of the same distribution channel by channel: each is binomial among the draws that are left."""
    tails = np.cumsum(values[::-1])[::-1]
    counts = np.zeros(values.size, dtype=np.int64)
    for j, u in enumerate(rng.random(values.size)):
        left = draws - int(counts.sum())
        if left == 0:
            break
        share = values[j] / tails[j]
        counts[j] = left if share >= 1 else max(0, int(stats.binom.ppf(u, left, share)))
    return counts


def _duels(chances: Array, count: int, uniforms: Array) -> list[int]:
    """Return the indices of `count` winners among probabilities that sum to it: Deville and Tillé's pivotal method.

    Each channel in turn meets the next. While their probabilities sum to less than 1, one of the two takes both; else
    one of the two wins, and the other keeps the remainder.
    """
    winners: list[int] = []
    holder, held = 0, float(chances[0]) if count else 0.0
    for other in range(1, len(chances)):
        chance, u = float(chances[other]), float(uniforms[other])
        both = held + chance
        if both < 1:
            holder, held = (other if u * both < chance else holder), both
        elif u * (2 - both) < 1 - chance:
            winners.append(holder)
            holder, held = other, both - 1
        else:
            winners.append(other)
            held = both - 1
    # The probabilities sum to an integer except for rounding: the last holder has won, or holds nothing.
    return winners if len(winners) == count else [*winners, holder]


def _descending(scores: Array) -> npt.NDArray[np.intp]:
    return np.argsort(-scores, kind="stable")


def _selection(units: npt.NDArray[np.intp], scales: Array) -> Selection:
    kept = np.sort(units)
    return Selection(tuple(kept.tolist()), tuple(scales[kept].tolist()))


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise SecateurError(f"{name} is {value}", remedy=f"give {name} from {least} to {most}")
