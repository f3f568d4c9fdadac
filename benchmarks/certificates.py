"""Do the certificates hold on known distributions, and how loose are they?

    python benchmarks/certificates.py     # writes results/certificates.json; about two minutes on one core

For every kind of statement, several sample sizes, several truths and two deltas: 2,000 experiments, each with new
samples from a distribution whose truth is known.

1. Violations: how often the statement was false. A cell is called broken if P(Bin(2000, delta) >= violations) < 1e-4:
   if every statement were false with probability exactly delta, one cell in 10,000 would be called broken by chance.
2. Looseness: the median excess of the bound over the truth, divided by that of an oracle. The oracle knows the
   distribution of the estimate: it adds to the estimate the amount by which the estimate falls short of the truth,
   except with probability delta. Where almost no events occur in the sample, the oracle knows more than any samples can
   show. So the looseness of a cell is assessed only if n times the variance of one outcome (in units of its range; for
   order statistics n times the level) is at least 10. There the ratio should be at most 2.

For the drop in accuracy two other valid bounds are compared with ours: a Clopper-Pearson bound for the losses and one
for the gains at delta / 2 each, and the empirical Bernstein bound of Maurer and Pontil; for means the latter.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from environment import options, prepare, print_table, write_record
from secateur.certificates.bounds import clopper_pearson
from secateur.certificates.certify import fixed_sequence
from secateur.certificates.statements import Sample

Array = npt.NDArray[np.float64]
RUNS = 2_000
DELTAS = (0.05, 0.01)
ERROR_RATE = 1e-4  # of each binomial test
ASSESSED_FROM = 10  # n times the variance from which on the looseness is assessed
LOOSE = 2.0
LEVEL = 0.05
ORACLE = 5_000  # means from which the oracle knows their distribution


@dataclass(frozen=True)
class Cell:
    """The result of 2,000 experiments."""

    kind: str
    what: str
    n: int
    delta: float
    violations: int
    runs: int
    information: float = 0.0  # n times the variance
    looseness: float | None = None
    others: dict[str, float | None] | None = None  # the looseness of other valid bounds

    @property
    def holds(self) -> bool:
        return float(stats.binom.sf(self.violations - 1, self.runs, self.delta)) >= ERROR_RATE

    @property
    def assessed(self) -> bool:
        return self.looseness is not None and self.information >= ASSESSED_FROM


def disagreements(n: int, rate: float, delta: float, runs: int, rng: np.random.Generator) -> Cell:
    """Simulate two classifiers that differ with a known probability."""
    counts = rng.binomial(n, rate, runs)
    bounds = _each(lambda k: Sample(n, delta).disagreement(int(k)).bound, counts)
    oracle = counts / n + rate - stats.binom.ppf(delta, n, rate) / n
    loose = _ratio(bounds, oracle, rate)
    return Cell("disagreement", f"rate {rate}", n, delta, _false(bounds, rate), runs, n * rate * (1 - rate), loose)


def errors_above(n: int, rate: float, delta: float, runs: int, rng: np.random.Generator) -> Cell:
    """Simulate lognormal errors, and an eps that is exceeded with a known probability."""
    eps = float(stats.lognorm.isf(rate, 1.0))
    errors = rng.lognormal(0, 1, (runs, n))
    bounds = np.array([Sample(n, delta).error_above(eps, row).bound for row in errors], dtype=np.float64)
    oracle = (errors > eps).mean(1) + rate - stats.binom.ppf(delta, n, rate) / n
    loose = _ratio(bounds, oracle, rate)
    return Cell("error above", f"rate {rate}", n, delta, _false(bounds, rate), runs, n * rate * (1 - rate), loose)


def drops(n: int, loss: float, gain: float, delta: float, runs: int, rng: np.random.Generator) -> Cell:
    """Simulate paired answers of which known shares are lost and gained."""
    truth, q = loss - gain, [loss, gain, 1 - loss - gain]
    counts = rng.multinomial(n, q, runs)[:, :2]
    many = rng.multinomial(n, q, 40 * ORACLE)
    quantile = np.quantile((many[:, 0] - many[:, 1]) / n, delta, method="inverted_cdf")
    oracle = (counts[:, 0] - counts[:, 1]) / n + truth - quantile

    def each(bound: Callable[[int, int], float | None]) -> Array:
        return _each(lambda pair: bound(int(pair[0]), int(pair[1])), counts)

    bounds = each(lambda b, c: Sample(n, delta).drop(b, c).bound)
    others = {
        "two Clopper-Pearson": _ratio(each(lambda b, c: two_bounds(b, c, n, delta)), oracle, truth),
        "empirical Bernstein": _ratio(each(lambda b, c: bernstein_drop(b, c, n, delta)), oracle, truth),
    }
    information = n * (loss + gain - truth**2)
    what = f"loss {loss}, gain {gain}"
    loose = _ratio(bounds, oracle, truth)
    return Cell("drop", what, n, delta, _false(bounds, truth), runs, information, loose, others)


def quantiles(n: int, name: str, delta: float, runs: int, rng: np.random.Generator) -> Cell:
    """Simulate the smallest certified error at a level, for errors of a known distribution."""
    law = {"lognormal": stats.lognorm(1.0), "exponential": stats.expon()}[name]
    errors = law.ppf(rng.random((runs, n)))
    bounds = np.array([Sample(n, delta).error(row, LEVEL).bound for row in errors], dtype=np.float64)
    truth, rank = float(law.isf(LEVEL)), math.ceil(n * (1 - LEVEL))
    low = float(law.ppf(special.betaincinv(rank, n + 1 - rank, delta)))
    oracle = np.sort(errors, axis=1)[:, rank - 1] + truth - low
    loose = _ratio(bounds, oracle, truth)
    return Cell("error", f"{name}, level {LEVEL}", n, delta, _false(bounds, truth), runs, n * LEVEL, loose)


def layers(n: int, count: int, delta: float, runs: int, rng: np.random.Generator) -> Cell:
    """Simulate several layers with correlated errors; the statement is false if it is for one of them."""
    truth, broken = float(stats.lognorm.isf(LEVEL, 1.0)), 0
    for _ in range(runs):
        common = rng.normal(size=(n, 1))
        errors = np.exp(math.sqrt(0.5) * common + math.sqrt(0.5) * rng.normal(size=(n, count)))
        bounds = [Sample(n, delta).layer("", column, LEVEL, count).bound for column in errors.T]
        broken += any(bound is not None and bound < truth for bound in bounds)
    return Cell("layer", f"{count} layers at once, level {LEVEL}", n, delta, broken, runs)


MEANS: dict[str, tuple[Any, float]] = {  # how a value is sampled, and its mean
    "Beta(1, 19)": (lambda rng, size: rng.beta(1, 19, size), 1 / 20),
    "Beta(2, 8)": (lambda rng, size: rng.beta(2, 8, size), 1 / 5),
    "mostly 0": (lambda rng, size: (rng.random(size) < 0.05) * rng.random(size), 0.025),
}


def means(n: int, name: str, squared: bool, delta: float, runs: int, rng: np.random.Generator) -> Cell:
    """Simulate changes between 0 and 1 with a known mean, or their squares."""
    sample, mean = MEANS[name]
    seconds = {"Beta(1, 19)": 2 / (20 * 21), "Beta(2, 8)": 2 * 3 / (10 * 11), "mostly 0": 0.05 / 3}
    power, truth = (2, seconds[name]) if squared else (1, mean)
    values = sample(rng, (runs, n)) ** power
    kind = "mean squared change" if squared else "mean change"
    bounds = np.array([Sample(n, delta).mean(kind, row, 1.0).bound for row in values], dtype=np.float64)
    known = np.concatenate([(sample(rng, (ORACLE // 10, n)) ** power).mean(1) for _ in range(10)])
    oracle = values.mean(1) + truth - np.quantile(known, delta)
    others = {"empirical Bernstein": _ratio(np.array([bernstein(row, delta) for row in values]), oracle, truth)}
    information = n * float(values.var())
    loose = _ratio(bounds, oracle, truth)
    return Cell(kind, name, n, delta, _false(bounds, truth), runs, information, loose, others)


def chosen(n: int, networks: int, delta: float, runs: int, rng: np.random.Generator) -> Cell:
    """Simulate the choice of the network with the smallest drop on the same samples; all are equally good."""
    loss, gain = 0.03, 0.01
    counts = rng.multinomial(n, [loss, gain, 1 - loss - gain], (runs, networks))
    best = (counts[..., 0] - counts[..., 1]).argmin(1)
    pairs = counts[np.arange(runs), best][:, :2]
    bounds = _each(lambda pair: Sample(n, delta, networks).drop(int(pair[0]), int(pair[1])).bound, pairs)
    return Cell("chosen", f"best of {networks}, loss {loss}, gain {gain}", n, delta, _false(bounds, loss - gain), runs)


def sequences(n: int, limit: float, delta: float, runs: int, rng: np.random.Generator) -> Cell:
    """Simulate ever smaller networks whose drop exceeds the limit from the fourth on; false if one of them passes."""
    true = [0.25 * limit, 0.5 * limit, 0.9 * limit, 1.000001 * limit, 1.1 * limit, 1.5 * limit]
    broken = 0
    for _ in range(runs):
        counts = [rng.multinomial(n, [drop + 0.01, 0.01, 0.98 - drop])[:2].tolist() for drop in true]

        def passes(number: int, counts: list[list[int]] = counts) -> bool:
            bound = Sample(n, delta).drop(*counts[number]).bound
            return bound is not None and bound <= limit

        last = fixed_sequence(range(len(true)), passes)
        broken += last is not None and true[last] > limit
    return Cell("fixed sequence", f"6 networks, limit {limit}", n, delta, broken, runs)


def two_bounds(losses: int, gains: int, n: int, delta: float) -> float:
    """Return the bound on the drop from a bound on each rate at half of delta."""
    return clopper_pearson(losses, n, delta / 2) - (1 - clopper_pearson(n - gains, n, delta / 2))


def bernstein(values: Array, delta: float) -> float:
    """Return the empirical Bernstein bound for values between 0 and 1 (Maurer and Pontil 2009, theorem 4)."""
    log, n = math.log(2 / delta), len(values)
    return float(values.mean() + math.sqrt(2 * values.var(ddof=1) * log / n) + 7 * log / (3 * (n - 1)))


def bernstein_drop(losses: int, gains: int, n: int, delta: float) -> float:
    """Return the same bound for outcomes -1, 0 and 1."""
    log, mean = math.log(2 / delta), (losses - gains) / n
    variance = (losses + gains - n * mean**2) / (n - 1)
    return mean + math.sqrt(2 * variance * log / n) + 2 * 7 * log / (3 * (n - 1))


def cells(seed: int) -> Iterator[Cell]:
    """Yield a cell for every kind, size, truth and delta; each has random numbers of its own."""
    seeds = iter(np.random.SeedSequence(seed).spawn(1000))

    def rng() -> np.random.Generator:
        return np.random.default_rng(next(seeds))

    for delta in DELTAS:
        for n in (200, 1000, 5000):
            for rate in (0.002, 0.01, 0.05, 0.2):
                yield disagreements(n, rate, delta, RUNS, rng())
        for n in (200, 1000):
            for rate in (0.01, 0.2):
                yield errors_above(n, rate, delta, RUNS, rng())
        for n in (300, 1000, 5000):
            for loss, gain in ((0.01, 0.0), (0.01, 0.005), (0.03, 0.03), (0.1, 0.05)):
                yield drops(n, loss, gain, delta, RUNS, rng())
        yield drops(100, 0.5, 0.3, delta, RUNS, rng())
        for n in (200, 1000, 5000):
            for name in ("lognormal", "exponential"):
                yield quantiles(n, name, delta, RUNS, rng())
        yield layers(500, 8, delta, RUNS, rng())
        for n in (300, 2000):
            for name in MEANS:
                for squared in (False, True):
                    yield means(n, name, squared, delta, RUNS, rng())
        yield chosen(1000, 5, delta, RUNS, rng())
        yield sequences(2000, 0.02, delta, RUNS, rng())


def _each(bound: Callable[[Any], float | None], counts: npt.NDArray[np.int64]) -> Array:
    """Return the bound of every row, computed once for equal rows; 1 where there is no bound."""
    rows, back = np.unique(counts, axis=0, return_inverse=True)
    found = [bound(row) for row in rows]
    return np.array([1.0 if one is None else one for one in found])[back.reshape(-1)]


def _false(bounds: Array, truth: float) -> int:
    """Return how many bounds are below the truth; where there is no bound, nothing is false."""
    return int((bounds < truth).sum())


def _ratio(bounds: Array, oracle: Array, truth: float) -> float | None:
    """Return how much farther from the truth the bounds are than the oracle; None where the oracle equals the truth."""
    distance = float(np.median(oracle)) - truth
    return (float(np.nanmedian(bounds)) - truth) / distance if distance > 0 else None


def as_record(done: list[Cell], seed: int, seconds: float) -> dict[str, Any]:
    """Return the cells as plain data, below a summary."""
    assessed = [cell for cell in done if cell.assessed]
    return {
        "what": f"statements that were false in {RUNS} simulated experiments, and how loose they are",
        "broken": f"if P(Bin({RUNS}, delta) >= violations) < {ERROR_RATE}",
        "looseness": "median excess over the truth, over that of an oracle that knows the distribution of the estimate",
        "assessed_from": ASSESSED_FROM,
        "cells": len(done),
        "cells_broken": sum(not cell.holds for cell in done),
        "cells_assessed": len(assessed),
        "cells_too_loose": sum(cell.looseness > LOOSE for cell in assessed if cell.looseness is not None),
        "median_looseness": float(np.median([cell.looseness for cell in assessed if cell.looseness is not None])),
        "seed": seed,
        "seconds": round(seconds, 1),
        "results": [
            {
                "kind": cell.kind,
                "what": cell.what,
                "n": cell.n,
                "delta": cell.delta,
                "violations": cell.violations,
                "allowed": cell.delta * cell.runs,
                "holds": cell.holds,
                "information": round(cell.information, 3),
                "looseness": None if cell.looseness is None else round(cell.looseness, 4),
                "others": cell.others and {name: value and round(value, 4) for name, value in cell.others.items()},
            }
            for cell in done
        ],
    }


def show(record: dict[str, Any]) -> None:
    """Print the cells, one line each, and the summary."""
    lines = []
    for row in record["results"]:
        loose = "-" if row["looseness"] is None else f"{row['looseness']:.2f}"
        loose = loose if row["information"] >= ASSESSED_FROM else f"({loose})"
        others = ", ".join(f"{value:.2f}" for value in (row["others"] or {}).values())
        false = str(row["violations"]) if row["holds"] else f"[red]{row['violations']}[/red]"
        lines.append((row["kind"], row["what"], row["n"], row["delta"], false, f"{row['allowed']:g}", loose, others))
    headings = ("kind", "truth", "n", "delta", "false", "allowed", "loose", "others")
    print_table(headings, lines, words=2, width=100)
    print({key: value for key, value in record.items() if key.startswith(("cells", "median"))})


def main() -> None:
    """Run all cells, write the record and print it."""
    parser = options(__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers (default: %(default)s)")
    args = parser.parse_args()
    prepare()
    started = time.perf_counter()
    done = list(cells(args.seed))
    record = as_record(done, args.seed, time.perf_counter() - started)
    write_record("certificates", record)
    show(record)


if __name__ == "__main__":
    main()
