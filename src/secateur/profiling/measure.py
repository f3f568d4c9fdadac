"""Measure a latency table: cut networks of random sizes are timed layer by layer, and the times are fitted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from secateur.channels.graph import ChannelGraph
from secateur.costs.timing import forward_pass, latency, use_threads
from secateur.network.examples import Example, describe
from secateur.network.modules import unwrap
from secateur.profiling.machine import machine
from secateur.profiling.stopwatch import Stopwatch, clock, layer_times
from secateur.profiling.table import LatencyTable, Segment, Sides
from secateur.progress import bar
from secateur.surgery.cut import cut
from secateur.surgery.plan import Plan

SECONDS = 25.0  # for the networks of random sizes
FEWEST, MOST = 8, 40  # of them
ROUNDS = 4  # timed passes of each
PARTS = (1.0, 0.75, 0.5, 0.25)  # of the units of a group
MULTIPLES = (2, 4, 8, 16, 32)
SIZE = 64  # channels around which multiples are tried
GAIN = 0.03  # of the time: less does not count
TRIED = 4  # layers, the slowest ones

Shapes = dict[str, tuple[int, ...]]


def measure_torch(
    model: nn.Module,
    graph: ChannelGraph,
    example: Example,
    *,
    threads: int | None = None,
    seconds: float = SECONDS,
    seed: int = 0,
    progress: bool = False,
) -> LatencyTable:
    """Return the table of a network in torch, on this machine, for inputs like the example.

    Args:
        graph: its channel groups, which say what can be cut together.
        threads: number of CPU threads, by default torch's setting.
        seconds: the time for networks of random sizes; at least eight are timed.
        seed: of the sizes.
    """
    model = unwrap(model)
    with use_threads(threads) as used:
        whole = latency(model, example, runs=10).median_ms
        (original,) = layer_times([model], example, ROUNDS)
        multiple = preferred_multiple(model, example, original)
        shapes = shapes_of(model)
        sides: dict[str, list[Sides]] = {name: [sides_of(shapes[name])] for name in original}
        times = {name: [ms] for name, ms in original.items()}
        totals: list[tuple[float, dict[str, Sides]]] = []
        rng, start, count = np.random.default_rng(seed), time.perf_counter(), 0
        with bar("timing layers", MOST, progress) as advance:
            while count < FEWEST or (count < MOST and time.perf_counter() - start < seconds):
                plan = _random_sizes(graph, rng, multiple)
                if plan.kept:
                    small = cut(model, plan)
                    reference, found = layer_times([unwrap(model), unwrap(small)], example, ROUNDS)
                    pace = sum(original.values()) / sum(reference.values())  # other load slows both
                    cut_shapes = shapes_of(unwrap(small))
                    for name, ms in found.items():
                        sides[name].append(_rounded(sides_of(cut_shapes[name]), sides[name][0], multiple))
                        times[name].append(ms * pace)
                    totals.append((sum(found.values()) * pace, {name: sides[name][-1] for name in found}))
                count += 1
                advance()
    segments = tuple(Segment.fit(name, sides[name][0], sides[name], times[name]) for name in original)
    return LatencyTable(
        segments=segments,
        original_ms=whole,
        multiple=multiple,
        network=type(model).__name__,
        shapes=shapes,
        input=describe(example),
        threads=used,
        machine=machine("torch"),
        networks=len(totals),
        error=_error(segments, totals),
    )


def _error(segments: tuple[Segment, ...], totals: list[tuple[float, dict[str, Sides]]]) -> float:
    """Return the median relative error of the fitted times of whole networks."""
    errors = [
        abs(sum(one.ms(*sides[one.weight]) for one in segments if one.weight in sides) / total - 1)
        for total, sides in totals
    ]
    return float(np.median(errors))


def _random_sizes(graph: ChannelGraph, rng: np.random.Generator, multiple: int) -> Plan:
    kept = {}
    for group in graph.prunable:
        units = group.size * PARTS[rng.integers(len(PARTS))]
        kept[group.name] = range(min(group.size, max(1, round(units / multiple) * multiple)))
    return Plan.keeping(graph, kept)


def shapes_of(model: nn.Module) -> Shapes:
    """Return the shapes of all parameters."""
    return {name: tuple(one.shape) for name, one in model.named_parameters()}


def sides_of(shape: tuple[int, ...]) -> Sides:
    """Return the first two axes of a weight."""
    return shape[0], shape[1]


def _rounded(sides: Sides, full: Sides, multiple: int) -> Sides:
    first, second = (min(whole, -(-side // multiple) * multiple) for side, whole in zip(sides, full))
    return first, second


def preferred_multiple(model: nn.Module, example: Example, times: Mapping[str, float]) -> int:
    """Return the largest multiple up to which further output channels cost no time, on the slowest layers.

    Kernels work on blocks of channels: with blocks of 16, a layer with 49 channels takes as long as one with 64.
    """
    slowest = sorted(times, key=lambda name: -times[name])
    calls: dict[str, tuple[Any, tuple[Any, ...], Any]] = {}

    def see(name: str, func: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        plain = kwargs.get("groups", args[6] if len(args) > 6 else 1) == 1
        if plain and isinstance(args[1], Tensor) and args[1].shape[0] >= SIZE and name not in calls:
            calls[name] = (func, tuple(one.detach() if isinstance(one, Tensor) else one for one in args), kwargs)

    with forward_pass(model, example) as run, Stopwatch(model, see):
        run()
    tried = [name for name in slowest if name in calls][:TRIED]
    return most_liked([free_multiples(fastest(_smaller(*calls[name]))) for name in tried])


def most_liked(several: Sequence[Sequence[int]]) -> int:
    """Return the largest multiple that is free for more than half of the layers, 1 if there is none.

    >>> most_liked([[2, 4, 8], [2, 4], [2, 4, 8, 16]])
    8
    """
    votes = Counter(multiple for free in several for multiple in free)
    return max((one for one in MULTIPLES if 2 * votes[one] > len(several)), default=1)


@torch.no_grad()
def _smaller(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[int, Callable[[], Any]]:
    """Return calls of a layer with 64 output channels and with fewer."""
    runs: dict[int, Callable[[], Any]] = {}
    for size in (SIZE, *(SIZE - multiple + 1 for multiple in MULTIPLES)):
        weight = args[1][:size].clone()
        bias = args[2][:size].clone() if len(args) > 2 and isinstance(args[2], Tensor) else None
        runs[size] = partial(_without_gradients, func, args[0], weight, bias, *args[3:], **kwargs)
    return runs


@torch.no_grad()
def _without_gradients(func: Any, *args: Any, **kwargs: Any) -> Any:
    return func(*args, **kwargs)


def free_multiples(best: Mapping[int, float]) -> list[int]:
    """Return the multiples up to which a layer of 64 output channels becomes no faster with fewer.

    >>> free_multiples({64: 1.0, 63: 1.0, 61: 1.0, 57: 0.99, 49: 0.8, 33: 0.6})
    [2, 4, 8]

    Args:
        best: the time for 64 channels, and for 63, 61, 57, 49 and 33.
    """
    found = []
    for multiple in MULTIPLES:
        if best[SIZE - multiple + 1] < (1 - GAIN) * best[SIZE]:
            break
        found.append(multiple)
    return found


def fastest(runs: Mapping[int, Callable[[], Any]], seconds: float = 0.5, least: int = 8) -> dict[int, float]:
    """Return the shortest time of each call, timed in turns for about this long."""
    best, now = dict.fromkeys(runs, float("inf")), clock()
    start, turns = time.perf_counter(), 0
    while turns < least or time.perf_counter() - start < seconds:
        for key, run in runs.items():
            before = now()
            run()
            best[key] = min(best[key], now() - before)
        turns += 1
    return best
