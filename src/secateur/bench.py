"""Which of two networks is faster: both are timed in turn, so that whatever else the machine does hits them alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import nn

from secateur.cost import Latency, forward_pass, use_threads
from secateur.errors import SecateurError, UsageError
from secateur.program import Example

RUNS = 50
WARMUP = 5
LEAST = 20  # pairs; from fewer the interval would be too short, see docs/bench.md
RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Bench:
    """The times of two networks, and how many times as fast the second is, with an interval; `print` tells it."""

    first: Latency
    second: Latency
    speedup: float  # the median of the first over that of the second
    low: float  # the interval of the speedup
    high: float
    confidence: float = CONFIDENCE

    @property
    def measurable(self) -> bool:
        """Whether the interval leaves out 1."""
        return not self.low <= 1 <= self.high

    @property
    def verdict(self) -> str:
        """The speedup in words."""
        interval = f"({self.confidence:.0%} interval {self.low:.3f} to {self.high:.3f})".replace("%", " %")
        if not self.measurable:
            return f"no measurable gain: {self.speedup:.3f} times as fast {interval}"
        return f"{'' if self.speedup > 1 else 'slower: '}{self.speedup:.3f} times as fast {interval}"

    def __str__(self) -> str:
        return f"{self.verdict}\nfirst: {self.first}\nsecond: {self.second}"


def bench(
    first: nn.Module,
    second: nn.Module,
    example: Example,
    *,
    runs: int = RUNS,
    warmup: int = WARMUP,
    threads: int | None = None,
    seed: int = 0,
) -> Bench:
    """Time the forward passes of two networks in turn, in eval mode and without gradients.

    >>> print(sc.bench(model, res.model, images[:1], threads=1))
    1.843 times as fast (95 % interval 1.821 to 1.866)
    first: 41.2 ms (41 to 41.9, 50 runs, 1 thread)
    second: 22.4 ms (22.1 to 22.9, 50 runs, 1 thread)

    example: a tensor, a tuple of arguments or a dict of keyword arguments that both take; its batch is what is timed.
    runs: how often each runs; the order within each pair is drawn by the seed.
    threads: CPU threads, torch's own setting unless given; that is put back afterwards.
    """
    if threads is not None and threads < 1:
        raise UsageError(f"cannot run on {threads} threads", remedy="give threads >= 1")
    with use_threads(threads) as used, forward_pass(first, example) as one, forward_pass(second, example) as other:
        return in_turn(one, other, runs=runs, warmup=warmup, threads=used, seed=seed)


def in_turn(
    first: Callable[[], Any],
    second: Callable[[], Any],
    *,
    runs: int = RUNS,
    warmup: int = WARMUP,
    threads: int = 1,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> Bench:
    """Time two calls in turn.

    >>> in_turn(lambda: model(x), lambda: session.run(None, {"x": x.numpy()})).speedup

    threads: how many both use, for the report. clock: gives the time in seconds.
    """
    if runs < LEAST or warmup < 0:
        raise UsageError(
            f"cannot compare by {runs} runs after {warmup} for warm-up", remedy=f"give runs >= {LEAST} and warmup >= 0"
        )
    rng = np.random.default_rng(seed)
    times = np.zeros((2, warmup + runs))
    for pair, swap in enumerate(rng.random(warmup + runs) < 0.5):
        for which in (1, 0) if swap else (0, 1):
            start = clock()
            (first, second)[which]()
            times[which, pair] = clock() - start
    times = times[:, warmup:]
    if times.min() <= 0:
        raise SecateurError("a pass took no time that the clock could see", remedy="time a larger batch")
    low, high = interval(times, rng=rng)
    return Bench(
        first=Latency.of(times[0].tolist(), threads),
        second=Latency.of(times[1].tolist(), threads),
        speedup=float(np.median(times[0]) / np.median(times[1])),
        low=low,
        high=high,
    )


def interval(times: ArrayLike, *, rng: np.random.Generator, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The bootstrap interval of the ratio of medians of times [2, pairs], resampled in blocks of neighbouring pairs.

    >>> interval([[4.1, 4.0, 4.2], [2.0, 2.1, 2.0]], rng=np.random.default_rng(0))

    A pair stays together, since both took what the machine did just then; so do neighbours, since that lasts.
    """
    times = np.asarray(times, np.float64)
    chosen = blocks(times.shape[1], rng)
    ratios = np.median(times[0][chosen], axis=1) / np.median(times[1][chosen], axis=1)
    low, high = np.quantile(ratios, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def blocks(pairs: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Places [resamples, pairs] in the order of time, drawn as runs of about the cube root of their number.

    >>> blocks(8, np.random.default_rng(0))[0]
    array([6, 7, 5, 6, 4, 5, 2, 3])
    """
    length = round(pairs ** (1 / 3))
    starts = rng.integers(pairs, size=(RESAMPLES, math.ceil(pairs / length)))
    places = (starts[:, :, None] + np.arange(length)) % pairs
    return places.reshape(RESAMPLES, -1)[:, :pairs]
