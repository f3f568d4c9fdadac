"""The bounds against their formulas as slow loops, against exact fractions, and against simulated coverage."""

from __future__ import annotations

import itertools
import math
import time
import tracemalloc
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from secateur.certificates.bounds import (
    _net_at_most,
    clopper_pearson,
    drop_bound,
    excess,
    mean_bound,
    order_statistic,
    samples_for_drop,
    samples_for_order_statistic,
    samples_for_rate,
)
from secateur.errors import SecateurError
from secateur.methods.pfp.bounds import (
    Hybrid,
    derandomized,
    draws_for,
    eps_of,
    expected_unique,
    hybrid,
    sample_complexity,
    samples_needed,
)

scores = st.lists(st.floats(0, 1), min_size=1, max_size=12).filter(any)
deltas = st.floats(1e-300, 0.99)


def shares(values: list[float] | np.ndarray) -> np.ndarray:
    return np.asarray(values) / np.sum(values)


def unique_by_hand(draws: int, p: list[Fraction]) -> Fraction:
    return sum((1 - (1 - share) ** draws for share in p), Fraction(0))


def at_most(c: int, n: int, level: Fraction) -> Fraction:
    """P(Bin(n, level) <= c), exactly."""
    return sum((math.comb(n, i) * level**i * (1 - level) ** (n - i) for i in range(c + 1)), Fraction(0))


def test_the_sample_complexity_is_the_formula() -> None:
    assert sample_complexity(0.5, 4.0, 1000, 0.01) == math.ceil((2 + 1 / 3) * 4 / 0.25 * math.log(8 * 1000 / 0.01))
    assert sample_complexity(0.1, 2.0, 64, 1e-16, C=1.3) == math.ceil(
        (2 + 0.2 / 3) * 1.3 * 2 / 0.01 * math.log(8 * 64 / 1e-16)
    )
    assert sample_complexity(0.1, 0.0, 64, 0.1) == 1


def test_a_failure_probability_of_1e_300_and_a_tiny_error_are_numbers() -> None:
    assert sample_complexity(1.0, 1.0, 10**9, 1e-300) == math.ceil(8 / 3 * (math.log(8e9) + 300 * math.log(10)))
    assert sample_complexity(1e-140, 1.0, 10, 1e-300) > 10**280
    with pytest.raises(SecateurError, match="infinite"):
        sample_complexity(1e-160, 1.0, 10, 1e-300)
    with pytest.raises(SecateurError, match="infinite"):
        sample_complexity(0.1, 1.0, 10, 0.1, C=math.inf)


@given(st.floats(1e-6, 10), st.floats(0.01, 1e4), st.integers(1, 10**9), deltas, st.floats(1, 10))
def test_the_error_of_the_draws_an_error_asks_for_is_that_error(
    eps: float, mass: float, sites: int, delta: float, C: float
) -> None:
    draws = sample_complexity(eps, mass, sites, delta, C)
    assert eps_of(draws, mass, sites, delta, C) <= eps * (1 + 1e-12)
    if draws > 1:
        assert eps_of(draws - 1, mass, sites, delta, C) > eps * (1 - 1e-12)


def test_the_error_comes_as_the_draws_came() -> None:
    many = eps_of(np.array([0.0, 10.0, 1e300, np.inf]), 2.0, 100, 0.1)
    assert isinstance(eps_of(10, 2.0, 100, 0.1), float)
    assert many[0] == np.inf and many[1] == eps_of(10, 2.0, 100, 0.1) and 0 < many[2] < 1e-148 and many[3] == 0
    assert eps_of(0, 0.0, 100, 0.1) == np.inf and eps_of(3, 0.0, 100, 0.1) == 0
    assert eps_of(10, 0.0, 100, 0.1, C=np.inf) == np.inf


@given(scores, st.integers(0, 200))
def test_expected_unique_is_the_sum(values: list[float], draws: int) -> None:
    p = shares(values)
    exact = unique_by_hand(draws, [Fraction(float(share)) for share in p])
    assert expected_unique(draws, p) == pytest.approx(float(exact), rel=1e-12)


def test_expected_unique_of_certain_impossible_and_hardly_possible_channels() -> None:
    p = np.array([1.0, 0.0, 1e-300])
    assert expected_unique(np.array([[0.0, 1.0], [1e300, np.inf]]), p) == pytest.approx(
        np.array([[0, 1], [1 - math.expm1(-1), 2]])
    )
    assert expected_unique(5, np.array([0.0, 0.0])) == 0
    assert expected_unique(3.0, np.array([1e-300])) == pytest.approx(3e-300)


MANY = 1e307  # nearly the largest float


@example([1.0] * 7 + [1.1e-308], [7.0])  # a channel so unlikely that the number of draws for it is not finite
@example([1.0, 0.5, 0.25, 0.125, 5e-324], [4.5])
@given(scores, st.lists(st.just(0.0) | st.floats(1e-250, 12), min_size=1, max_size=8))
def test_draws_for_is_the_fewest_that_give_so_many(values: list[float], wishes: list[float]) -> None:
    p = shares(values)
    wishes = sorted(wishes)
    found = draws_for(wishes, p)
    assert (np.diff(found[np.isfinite(found)]) >= 0).all()
    for wish, draws in zip(wishes, found):
        if wish >= np.count_nonzero(p):
            assert draws == np.inf
        elif draws == np.inf:  # more than a float can hold
            assert expected_unique(MANY, p) <= wish
        else:
            assert expected_unique(float(draws), p) == pytest.approx(wish, rel=1e-9)


def test_draws_for_finds_the_first_draws_of_a_flat_stretch() -> None:
    """Two equal channels and a hopeless one: 2 is reached where 2 * 2^-m = 1 - (1 - 1e-300)^m, long after rounding."""
    (draws,) = draws_for([2.0], np.array([0.5, 0.5, 1e-300]))
    assert math.log(2) - draws * math.log(2) == pytest.approx(math.log(draws) - 300 * math.log(10), rel=1e-9)


@pytest.mark.parametrize(
    "make",
    [
        lambda rng: rng.random(2048),
        lambda rng: np.ones(2048),
        lambda rng: 10.0 ** rng.uniform(-300, 0, 2048),
        lambda rng: np.repeat([1.0, 1e-300], 1024),
    ],
    ids=["uniform", "equal", "skewed", "two kinds"],
)
def test_every_size_of_a_large_group_is_fast_and_small(make: Callable[[np.random.Generator], np.ndarray]) -> None:
    p = shares(make(np.random.default_rng(0)))
    wishes = np.arange(2048.0)
    tracemalloc.start()
    begin = time.process_time()
    found = draws_for(wishes, p)
    seconds, (_, peak) = time.process_time() - begin, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 3  # 0.15 to 0.4 s on a quiet core
    assert peak < 50e6
    assert (np.diff(found) > 0).all()
    assert expected_unique(found, p) == pytest.approx(wishes, rel=1e-9)


def margins(s: list[float], eps: float, sites: int, delta: float, C: float) -> list[tuple[float, int]]:
    """The theorem's left side minus its right side, and m', for each k: as written."""
    ordered = sorted(s, reverse=True)
    total = math.fsum(ordered)
    m = sample_complexity(eps, total, sites, delta, C)
    out = []
    for k in range(len(s)):
        rest = math.fsum(ordered[k:])
        r = C * rest
        drawn = math.ceil((2 * r * min(1, r) + 2 / 3 * eps * r) / eps**2 * math.log(16 * sites / delta))
        left = sum((1 - x / rest) ** drawn if rest else 1.0 for x in ordered[k:])
        right = sum((1 - x / total) ** m for x in ordered) + math.sqrt(math.log(2 / delta) * (m + drawn) / 2)
        out.append((left - right, drawn))
    return out


@pytest.mark.parametrize("seed", range(60))
def test_hybrid_is_the_largest_margin(seed: int) -> None:
    """A few channels of weight and many that share half or so: keeping some outright pays in 8 of the 60."""
    rng = np.random.default_rng(seed)
    many = rng.random(int(rng.integers(1, 400))) ** rng.choice([0.1, 1.0, 4.0])
    s = np.concatenate([rng.random(rng.integers(0, 5)), many * rng.uniform(0.2, 2) / many.sum(), np.zeros(seed % 3)])
    eps, sites, delta, C = (
        rng.uniform(0.05, 0.5),
        int(rng.integers(1, 20)),
        rng.uniform(0.001, 0.9),
        rng.uniform(1, 1.3),
    )
    choice = hybrid(s, eps, sites, delta, C)
    naive = margins(s.tolist(), eps, sites, delta, C)
    best, k = max((margin, -k) for k, (margin, _) in enumerate(naive))
    if best > 0:
        assert choice == Hybrid(-k, naive[-k][1])
    else:
        assert choice == Hybrid(0, sample_complexity(eps, math.fsum(s), sites, delta, C))


def test_hybrid_where_it_pays_and_where_it_does_not() -> None:
    assert hybrid(np.array([1e-3] * 500 + [1.0]), 0.1, 1, 0.5).k == 1
    assert hybrid(np.full(100, 0.01), 0.1, 100, 1e-16).k == 0
    assert hybrid(np.zeros(5), 0.1, 100, 1e-300) == Hybrid(0, 1)
    assert hybrid(np.array([1.0, 0.0]), 1e-145, 100, 1e-300).k == 0


def test_hybrid_of_a_large_group_is_fast() -> None:
    begin = time.process_time()
    hybrid(np.random.default_rng(0).random(2048), 0.5, 1000, 1e-16)
    assert time.process_time() - begin < 2  # 0.1 s on a quiet core


def test_the_derandomized_bound_is_what_was_dropped() -> None:
    assert derandomized(np.array([0.1, 0.2]), C=1.5) == pytest.approx(0.45)
    assert derandomized(np.array([])) == 0
    assert derandomized(np.array([]), C=math.inf) == 0
    assert derandomized(np.array([0.0]), C=math.inf) == math.inf


def test_samples_needed_is_the_formula() -> None:
    assert samples_needed(0.01, 64, K=3.0) == math.ceil(3 * math.log(2 * 64 / 0.01))
    assert samples_needed(1e-300, 1) == math.ceil(math.log(2) + 300 * math.log(10))


@pytest.mark.parametrize("n", [1, 7, 40])
@pytest.mark.parametrize("delta", [0.5, 0.05, 1e-12, 1e-300])
def test_clopper_pearson_solves_its_equation(n: int, delta: float) -> None:
    """At the bound, seeing so few has probability delta: checked with exact sums a little to either side."""
    for k in range(n):
        bound = clopper_pearson(k, n, delta)
        missed = Fraction(1) - Fraction(bound)
        if missed > Fraction(1, 10**6):  # else the bound's own rounding is all that is left
            step = missed * Fraction(1, 10**7)
            assert at_most(k, n, Fraction(bound) + step) < Fraction(delta) < at_most(k, n, Fraction(bound) - step)
    assert clopper_pearson(n, n, delta) == 1.0


def test_clopper_pearson_covers() -> None:
    """20,000 experiments at 20 %: at most 5 % may miss. A right bound fails this test once in a million runs."""
    n, truth, delta, runs = 50, 0.2, 0.05, 20_000
    rng = np.random.default_rng(0)
    bounds = np.array([clopper_pearson(k, n, delta) for k in range(n + 1)])
    misses = int((bounds[(rng.random((runs, n)) < truth).sum(axis=1)] < truth).sum())
    assert misses <= stats.binom.isf(1e-6, runs, delta)
    assert misses > 0


@pytest.mark.parametrize("n", [0, 1, 5, 30, 59, 90])
@pytest.mark.parametrize("level", ["0.01", "0.05", "0.25", "0.9"])
@pytest.mark.parametrize("delta", [0.3, 0.05, 1e-6, 1e-60])
def test_the_order_statistic_is_the_smallest_that_holds(n: int, level: str, delta: float) -> None:
    fits = [r for r in range(1, n + 1) if at_most(n - r, n, Fraction(level)) <= Fraction(delta)]
    assert order_statistic(n, float(level), delta) == (min(fits) if fits else None)


@pytest.mark.parametrize("level", [0.5, 0.1, 1e-4])
@pytest.mark.parametrize("delta", [0.5, 0.05, 1e-300])
def test_the_fewest_samples_for_an_order_statistic(level: float, delta: float) -> None:
    n = samples_for_order_statistic(level, delta)
    assert order_statistic(n, level, delta) == n
    assert order_statistic(n - 1, level, delta) is None
    assert n * math.log1p(-level) <= math.log(delta) < (n - 1) * math.log1p(-level)


def test_the_order_statistic_covers() -> None:
    """20,000 samples of 100: at most 5 % may lie below the quantile. A right rank fails once in a million runs."""
    n, level, delta, runs = 100, 0.05, 0.05, 20_000
    rank = order_statistic(n, level, delta)
    assert rank is not None
    values = np.sort(np.random.default_rng(1).random((runs, n)), axis=1)[:, rank - 1]
    misses = int((1 - values > level).sum())
    assert misses <= stats.binom.isf(1e-6, runs, delta)
    assert misses > runs * delta / 4  # and it is not wasteful


def test_the_excess_is_an_order_statistic_and_at_least_1() -> None:
    ratios = np.random.default_rng(0).permutation(np.linspace(0.5, 1.5, 100))
    rank = order_statistic(100, 0.05, 0.05)
    assert rank is not None
    assert excess(ratios, 0.05, 0.05) == np.sort(ratios)[rank - 1]
    assert excess(ratios / 2, 0.05, 0.05) == 1.0
    assert excess(np.full(59, np.inf), 0.05, 0.05) == np.inf
    with pytest.raises(SecateurError, match=r"58 held-out samples are too few.*\n.*at least 59"):
        excess(np.ones(58), 0.05, 0.05)


@pytest.mark.parametrize("n", [1, 2, 5, 14])
@pytest.mark.parametrize("delta", [0.5, 0.1, 1e-3])
def test_the_drop_bound_covers_exactly(n: int, delta: float) -> None:
    """For all outcomes of n pairs: those whose bound is below the truth have a probability of at most delta."""
    outcomes = [(b, c) for b in range(n + 1) for c in range(n + 1 - b)]
    bounds = np.array([drop_bound(b, c, n, delta) for b, c in outcomes])
    ways = np.array([math.comb(n, b) * math.comb(n - b, c) for b, c in outcomes], dtype=float)
    b, c = np.array(outcomes).T
    worst = 0.0
    for loss in np.linspace(0, 1, 41):
        for gain in np.linspace(0, 1 - loss, 41):
            chance = ways * loss**b * gain**c * max(0.0, 1 - loss - gain) ** (n - b - c)
            assert chance.sum() == pytest.approx(1)
            worst = max(worst, float(chance[bounds < loss - gain - 1e-12].sum()))
    assert worst <= delta
    if n == 14:
        assert worst > delta / 20  # and it is not wasteful


def net_at_most(net: int, n: int, loss: Fraction, gain: Fraction) -> Fraction:
    """P(losses - gains <= net), exactly."""
    total = Fraction(0)
    for b in range(n + 1):
        for c in range(max(0, b - net), n + 1 - b):
            total += math.comb(n, b) * math.comb(n - b, c) * loss**b * gain**c * (1 - loss - gain) ** (n - b - c)
    return total


@pytest.mark.parametrize(("losses", "gains"), [(0, 0), (3, 0), (2, 2), (0, 3), (4, 1)])
@pytest.mark.parametrize("delta", [0.05, 1e-6])
def test_the_drop_bound_solves_its_equation(losses: int, gains: int, delta: float) -> None:
    """At the bound, with the largest rate of change, so small a drop has probability 0.9 delta: by exact sums."""
    n = 50
    q = Fraction(clopper_pearson(losses + gains, n, 0.1 * delta))
    bound = Fraction(drop_bound(losses, gains, n, delta))
    assert q < Fraction(1, 2)
    for step in (Fraction(1, 10**7), Fraction(-1, 10**7)):
        d = min(bound + step, q)
        found = net_at_most(losses - gains, n, (q + d) / 2, (q - d) / 2)
        assert (found < Fraction(9, 10) * Fraction(delta)) == (step > 0)


@given(st.integers(2, 60), st.floats(0.001, 0.5), st.floats(-1, 1), st.integers(-20, 20))
def test_a_larger_rate_of_change_hides_a_larger_drop(n: int, q: float, share: float, net: int) -> None:
    """What the drop bound rests on: P(net or less) grows with q where the drop is at least (net + 1) / (n - 1)."""
    d = q * share
    if d < (net + 1) / (n - 1):
        return
    chances = [_net_at_most(net, n, rate, d, 1e-30) for rate in np.linspace(max(q, 1e-9), 0.5, 6)]
    assert all(b >= a * (1 - 1e-9) - 1e-28 for a, b in itertools.pairwise(chances))


def test_the_drop_bound_of_many_samples_and_of_none_changed() -> None:
    assert 0 < drop_bound(0, 0, 10**6, 1e-12) < 4e-5
    assert drop_bound(1, 0, 1, 0.05) == drop_bound(0, 1, 1, 0.05) == 1.0
    assert drop_bound(500, 500, 1000, 0.05) < 0.08  # every pair changed
    assert drop_bound(0, 500, 1000, 0.05) < -0.4
    assert drop_bound(30, 10, 10_000, 0.05) < drop_bound(30, 10, 10_000, 1e-3)


def capital(values: list[float], m: float, delta: float) -> float:
    """The best that betting against the mean m came to, as a slow loop."""
    worth = best = 0.0
    total, squares, variance = 0.0, 0.0, 0.01
    for t, x in enumerate(values, 1):
        stake = min(math.sqrt(2 * math.log(1 / delta) / (len(values) * variance)), 0.9 / (1 - m))
        worth += math.log(1 + stake * (m - x))
        best = max(best, worth) if t > 1 else worth
        total += x
        squares += (x - total / (t + 1)) ** 2
        variance = (0.01 + squares) / (t + 1)
    return best


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.sampled_from([0.3, 0.05, 1e-4]))
def test_the_mean_bound_is_where_the_capital_reaches_its_goal(values: list[float], delta: float) -> None:
    bound = mean_bound(np.array(values), delta)
    assert bound >= np.mean(values) - 1e-12
    if bound < 1 - 1e-9:
        assert capital(values, bound + 1e-9, delta) >= -math.log(delta) - 1e-6
    assert capital(values, bound - 1e-9, delta) <= -math.log(delta) + 1e-6


def test_the_samples_that_a_limit_takes() -> None:
    assert samples_for_rate(0.0, 0.05, 0.05) == 59
    many = samples_for_rate(0.01, 0.02, 1e-3)
    assert many is not None and clopper_pearson(math.ceil(0.01 * many), many, 1e-3) <= 0.02
    assert samples_for_rate(0.02, 0.02, 0.05) is None and samples_for_drop(0.03, 0.01, 0.02, 0.05) is None
    few, more = samples_for_drop(0.003, 0.001, 0.02, 1e-3), samples_for_drop(0.003, 0.001, 0.01, 1e-3)
    assert few is not None and more is not None and few < more < 10_000


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sample_complexity(0, 1, 1, 0.1), "eps is 0"),
        (lambda: sample_complexity(math.nan, 1, 1, 0.1), "eps is nan"),
        (lambda: sample_complexity(0.1, -1, 1, 0.1), "mass is negative"),
        (lambda: sample_complexity(0.1, 1, 0, 0.1), "sites is 0"),
        (lambda: sample_complexity(0.1, 1, 1, 0.0), "delta is 0.0"),
        (lambda: sample_complexity(0.1, 1, 1, 1.0), "delta is 1.0"),
        (lambda: eps_of(1, 1, 1, 0.1, C=0.5), "C is 0.5"),
        (lambda: eps_of(-1, 1, 1, 0.1), "draws is negative"),
        (lambda: expected_unique(math.nan, np.ones(1)), "draws is negative or NaN"),
        (lambda: expected_unique(1, np.array([2.0])), "not a list of probabilities"),
        (lambda: draws_for([-1.0], np.ones(1)), "unique is negative"),
        (lambda: hybrid(np.array([math.nan]), 0.1, 1, 0.1), "sensitivities"),
        (lambda: derandomized(np.array([-0.1])), "a sensitivity is negative"),
        (lambda: samples_needed(0.1, 0), "channels is 0"),
        (lambda: clopper_pearson(3, 2, 0.1), "3 of 2"),
        (lambda: clopper_pearson(0, 0, 0.1), "0 of 0"),
        (lambda: order_statistic(10, 0.0, 0.1), "level is 0.0"),
        (lambda: drop_bound(3, 2, 4, 0.1), "3 losses and 2 gains in 4"),
        (lambda: drop_bound(-1, 2, 4, 0.1), "-1 losses"),
        (lambda: mean_bound(np.array([1.5]), 0.1), "numbers from 0 to 1"),
        (lambda: mean_bound(np.array([math.nan]), 0.1), "numbers from 0 to 1"),
        (lambda: mean_bound(np.array([]), 0.1), "numbers from 0 to 1"),
        (lambda: excess(np.array([math.nan]), 0.1, 0.1), "a ratio is negative or NaN"),
    ],
)
def test_what_cannot_be_meant_is_refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(SecateurError, match=words) as caught:
        call()
    assert caught.value.remedy
