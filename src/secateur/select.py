"""From sensitivities and a size to the channels that stay, and what their consumers' weights are multiplied by."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from secateur.errors import SecateurError

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

ONE_BY_ONE = 10**6  # up to here every draw has its own random number
MOST_DRAWS = 10**12  # beyond, scipy's binomial quantile gets lost


@dataclass(frozen=True)
class Selection:
    """The units that stay, and the scale of each: its consumers' slices are multiplied by it, 1.0 is untouched.

    >>> derand(np.array([0.2, 0.9, 0.5]), count=2)
    Selection(kept=(1, 2), scales=(1.0, 1.0))
    """

    kept: tuple[int, ...]  # sorted
    scales: tuple[float, ...]  # one for each kept unit


def generator(seed: int, name: str) -> np.random.Generator:
    """The random numbers of one group: they depend on the seed and its name, not on the other groups.

    >>> generator(0, "conv1").random() == generator(0, "conv1").random()
    True
    """
    if seed < 0:
        raise SecateurError(f"the seed is {seed}", layer=name, remedy="give a seed from 0 on")
    digest = hashlib.sha256(name.encode()).digest()
    words = [int.from_bytes(digest[i : i + 4], "big") for i in range(0, len(digest), 4)]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([*words, seed])))


def rand(s: Array, draws: int, rng: np.random.Generator) -> Selection:
    """Draw `draws` times with replacement, each channel by its share p of the sensitivities.

    The channels that were drawn stay, scaled by count / (draws p): on average every sum over channels is as before.
    Up to a million draws, fewer draws from the same generator are the first of more draws; beyond, the counts come
    from conditional binomial distributions, and this nesting is lost. Where all sensitivities are 0, the first
    `draws` channels stay, unscaled.

    >>> rand(np.array([0.5, 0.0, 0.5]), draws=100, rng=generator(0, "conv1")).kept
    (0, 2)
    """
    return partial(s, 0, draws, rng)


def partial(s: Array, k: int, draws: int, rng: np.random.Generator) -> Selection:
    """Keep the `k` largest unscaled, and draw from the rest as `rand` does.

    Where the rest has no sensitivity, nothing is drawn; where all sensitivities are 0, the first `k + draws` stay.

    >>> partial(np.array([0.1, 0.9, 0.1]), k=1, draws=100, rng=generator(0, "conv1")).kept
    (0, 1, 2)
    """
    scores = _checked(s)
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
    """Keep the `count` largest, unscaled; of equals, those that come first.

    >>> derand(np.array([0.2, 0.9, 0.2]), count=2).kept
    (0, 1)
    """
    scores = _checked(s)
    _check_range("count", count, 1, scores.size)
    return _selection(_descending(scores)[:count], np.ones(scores.size))


def pivotal(s: Array, count: int, rng: np.random.Generator) -> Selection:
    """Draw exactly `count` channels, each with probability pi = min(1, tau s), and scale them by 1 / pi.

    On average every sum over channels is as before, and it varies less than with `rand` at the same size. Where
    `count` covers every channel of positive sensitivity, these and the first of the others stay, unscaled.

    >>> pivotal(np.array([0.2, 0.9, 0.2, 0.2]), count=2, rng=generator(0, "conv1")).kept
    (0, 1)
    """
    scores = _checked(s)
    _check_range("count", count, 1, scores.size)
    if count >= np.count_nonzero(scores):
        return derand(scores, count)
    chances = _inclusion(scores, count)
    taken = np.flatnonzero(chances >= 1)
    open_ = np.flatnonzero((chances > 0) & (chances < 1))
    drawn = _duels(chances[open_], count - taken.size, rng.random(open_.size))
    return _selection(np.concatenate([taken, open_[drawn]]), 1 / np.where(chances > 0, chances, 1.0))


def _inclusion(s: Array, count: int) -> Array:
    """The probabilities min(1, tau s) that sum to `count`, for a `count` below the number of positive sensitivities."""
    order = _descending(s)
    values = s[order]
    tails = np.cumsum(values[::-1])[::-1]
    left = count - np.arange(s.size)
    sure = int(np.argmax(left * values < tails))  # so many have chance 1; the others share what is left
    chances = np.ones(s.size)
    chances[order[sure:]] = np.minimum(left[sure] * (values[sure:] / tails[sure]), 1.0)
    return chances


def _drawn_scales(values: Array, draws: int, rng: np.random.Generator) -> Array:
    """count / (draws p) for positive sensitivities, 0 for the channels not drawn."""
    sums = np.cumsum(values)
    counts = _counts_one_by_one(sums, draws, rng) if draws <= ONE_BY_ONE else _counts_at_once(values, draws, rng)
    with np.errstate(over="ignore"):
        return np.where(counts > 0, counts / draws * (sums[-1] / values), 0.0)


def _counts_one_by_one(sums: Array, draws: int, rng: np.random.Generator) -> Whole:
    """How often each channel is drawn: the stretch of the cumulative sums that a random number falls into."""
    where = np.searchsorted(sums, rng.random(draws) * sums[-1], side="right")
    return np.bincount(np.minimum(where, sums.size - 1), minlength=sums.size)


def _counts_at_once(values: Array, draws: int, rng: np.random.Generator) -> Whole:
    """The same distribution channel by channel: each count is binomial among the draws that are left."""
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
    """The ordered pivotal method of Deville and Tillé: positions of `count` winners among chances that sum to it.

    One channel at a time meets the next. Their chances go together to one of the two while they sum to less than 1;
    else one of the two wins, and the other goes on with what is left.
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
    # The chances sum to a whole number but for rounding: the last holder has won, or holds nothing.
    return winners if len(winners) == count else [*winners, holder]


def _descending(scores: Array) -> npt.NDArray[np.intp]:
    return np.argsort(-scores, kind="stable")


def _selection(units: npt.NDArray[np.intp], scales: Array) -> Selection:
    kept = np.sort(units)
    return Selection(tuple(kept.tolist()), tuple(scales[kept].tolist()))


def _checked(s: Array) -> Array:
    scores = np.asarray(s, dtype=np.float64)
    if scores.ndim != 1 or not scores.size or not ((scores >= 0) & np.isfinite(scores)).all():
        raise SecateurError("the sensitivities are not a list of numbers from 0 on", remedy="compute them again")
    return scores


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise SecateurError(f"{name} is {value}", remedy=f"give {name} from {least} to {most}")
