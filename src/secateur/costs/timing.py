"""Time forward passes; two networks are timed interleaved, so that other load on the machine affects both alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from secateur.checks import known_keywords
from secateur.errors import SecateurError, UsageError
from secateur.network.examples import Example, call_arguments, explain_errors
from secateur.network.modules import check_network, mode
from secateur.rows import frame, html

RUNS = 50
WARMUP = 5
MIN_RUNS = 20  # of fewer the interval would be too short, see docs/bench.md
RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Latency:
    """Time of one forward pass in milliseconds.

    Attributes:
        median_ms: the median of the runs.
        q25_ms, q75_ms: their quartiles.
        runs: the number of runs.
        threads: the number of CPU threads.
    """

    median_ms: float
    q25_ms: float
    q75_ms: float
    runs: int
    threads: int

    @classmethod
    def of(cls, seconds: Sequence[float], threads: int) -> Latency:
        """Return the summary of the times of single runs.

        >>> Latency.of([0.0412, 0.0409, 0.0415], threads=1).median_ms
        41.2
        """
        q25, median, q75 = np.percentile(np.array(seconds) * 1e3, [25, 50, 75])
        return cls(float(median), float(q25), float(q75), len(seconds), threads)

    def __str__(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        median, q25, q75 = (
            f"{ms:.0f}" if ms >= 100 else f"{ms:.3g}" for ms in (self.median_ms, self.q25_ms, self.q75_ms)
        )
        return f"{median} ms ({q25} to {q75}, {self.runs} runs, {threads})"


@dataclass(frozen=True)
class Bench:
    """The latencies of two networks and the speedup of the second; `print` shows them.

    Attributes:
        first, second: the latencies.
        speedup: the median time of the first over that of the second.
        low, high: the confidence interval of the speedup.
        confidence: its level.
    """

    first: Latency
    second: Latency
    speedup: float
    low: float
    high: float
    confidence: float = CONFIDENCE

    @property
    def measurable(self) -> bool:
        """Whether the interval excludes 1."""
        return not self.low <= 1 <= self.high

    @property
    def verdict(self) -> str:
        """The speedup in words."""
        interval = f"({self.confidence:.0%} interval {self.low:.3f} to {self.high:.3f})".replace("%", " %")
        prefix = "no measurable gain: " if not self.measurable else "slower: " if self.speedup <= 1 else ""
        return f"{prefix}{self.speedup:.3f} times as fast {interval}"

    def _repr_html_(self) -> str:
        return html(self._rows(), caption=self.verdict)

    def to_frame(self) -> Any:
        """Return both latencies as rows of a pandas DataFrame."""
        return frame(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        return [{"network": name, **asdict(one)} for name, one in (("first", self.first), ("second", self.second))]

    def __str__(self) -> str:
        return f"{self.verdict}\nfirst: {self.first}\nsecond: {self.second}"


@known_keywords
def latency(
    model: nn.Module, example: Example, *, runs: int = 30, warmup: int = WARMUP, threads: int | None = None
) -> Latency:
    """Return the time of a model's forward pass, in eval mode and without gradients.

    >>> print(sc.latency(model, torch.zeros(1, 3, 224, 224), threads=1))
    41.2 ms (41 to 41.9, 30 runs, 1 thread)

    Args:
        model: the network; the modes of its modules are restored afterwards.
        example: inputs as `forward` takes them: a tensor, a tuple of arguments or a dict of keyword arguments.
        runs: number of timed runs.
        warmup: number of runs before these.
        threads: number of CPU threads, by default torch's setting, which is restored afterwards.
    """
    _check_counts(runs, 1, warmup, threads)
    times = []
    with use_threads(threads) as used, forward_pass(model, example) as run:
        for _ in range(warmup + runs):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
    return Latency.of(times[warmup:], used)


@known_keywords
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
    """Return the latencies of two networks, timed interleaved in eval mode and without gradients, and the speedup.

    >>> print(sc.bench(model, res.model, images[:1], threads=1))
    1.843 times as fast (95 % interval 1.821 to 1.866)
    first: 41.2 ms (41 to 41.9, 50 runs, 1 thread)
    second: 22.4 ms (22.1 to 22.9, 50 runs, 1 thread)

    Args:
        first, second: the networks.
        example: inputs for both: a tensor, a tuple of arguments or a dict of keyword arguments.
        runs: number of timed runs of each network, at least 20.
        warmup: number of runs of each before these.
        threads: number of CPU threads, by default torch's setting, which is restored afterwards.
        seed: seed of the order within each pair of runs.
    """
    _check_counts(runs, MIN_RUNS, warmup, threads)
    with use_threads(threads) as used, forward_pass(first, example) as one, forward_pass(second, example) as other:
        return interleaved(one, other, runs=runs, warmup=warmup, threads=used, seed=seed)


def interleaved(
    first: Callable[[], Any],
    second: Callable[[], Any],
    *,
    runs: int = RUNS,
    warmup: int = WARMUP,
    threads: int = 1,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> Bench:
    """Return the latencies of two calls, timed interleaved, and the speedup.

    >>> interleaved(lambda: model(x), lambda: session.run(None, {"x": x.numpy()})).speedup

    Args:
        first, second: the calls.
        runs, warmup, seed: as for `bench`.
        threads: number of threads that both use, for the report.
        clock: returns the time in seconds.
    """
    _check_counts(runs, MIN_RUNS, warmup, threads)
    rng = np.random.default_rng(seed)
    times = np.zeros((2, warmup + runs))
    for pair, swap in enumerate(rng.random(warmup + runs) < 0.5):
        for which in (1, 0) if swap else (0, 1):
            start = clock()
            (first, second)[which]()
            times[which, pair] = clock() - start
    times = times[:, warmup:]
    if times.min() <= 0:
        raise SecateurError("a run was too short for the clock to measure", remedy="time a larger batch")
    low, high = interval(times, rng=rng)
    return Bench(
        first=Latency.of(times[0].tolist(), threads),
        second=Latency.of(times[1].tolist(), threads),
        speedup=float(np.median(times[0]) / np.median(times[1])),
        low=low,
        high=high,
    )


def _check_counts(runs: int, least: int, warmup: int, threads: int | None) -> None:
    if runs < least or warmup < 0 or (threads is not None and threads < 1):
        raise UsageError(
            f"cannot time with runs={runs}, warmup={warmup}, threads={threads}",
            remedy=f"pass runs >= {least}, warmup >= 0 and threads >= 1",
        )


def interval(times: ArrayLike, *, rng: np.random.Generator, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the bootstrap interval of the ratio of medians, resampled in blocks of neighbouring pairs.

    >>> interval([[4.1, 4.0, 4.2], [2.0, 2.1, 2.0]], rng=np.random.default_rng(0))

    The two times of a pair stay together, since both met the same load; so do neighbours, since load lasts.

    Args:
        times: the times of both networks, [2, pairs], in the order of measurement.
        rng: the source of random numbers.
        confidence: the level of the interval.
    """
    times = np.asarray(times, np.float64)
    chosen = blocks(times.shape[1], rng)
    ratios = np.median(times[0][chosen], axis=1) / np.median(times[1][chosen], axis=1)
    low, high = np.quantile(ratios, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def blocks(pairs: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return indices of pairs, [resamples, pairs], sampled as blocks of about the cube root of their number.

    >>> blocks(8, np.random.default_rng(0))[0]
    array([6, 7, 5, 6, 4, 5, 2, 3])
    """
    length = round(pairs ** (1 / 3))
    starts = rng.integers(pairs, size=(RESAMPLES, math.ceil(pairs / length)))
    indices = (starts[:, :, None] + np.arange(length)) % pairs
    return indices.reshape(RESAMPLES, -1)[:, :pairs]


@contextmanager
def use_threads(threads: int | None) -> Iterator[int]:
    """Set the number of CPU threads of torch, None for its present setting; restore it at the end.

    >>> with use_threads(1) as used:
    ...     model(images)
    """
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads or before)
        yield threads or before
    finally:
        torch.set_num_threads(before)


@contextmanager
def forward_pass(model: nn.Module, example: Example) -> Iterator[Callable[[], Any]]:
    """Give a function that runs one forward pass to completion, in eval mode and without gradients.

    >>> with forward_pass(model, torch.zeros(1, 3, 224, 224)) as run:
    ...     outputs = run()
    """
    if not isinstance(model, nn.Module):
        check_network(model)
    args, kwargs = call_arguments(example)
    # A call returns while its work on an accelerator is still queued: wait for it.
    queued = any(tensor.device.type not in ("cpu", "meta") for tensor in model.parameters())

    def run() -> Any:
        with explain_errors(example):
            outputs = model(*args, **kwargs)
            if queued:
                torch.accelerator.synchronize()
        return outputs

    with torch.no_grad(), mode(model, train=False):
        yield run
