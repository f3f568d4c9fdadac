"""Time the layers of a network during a forward pass, each with what follows it up to the next layer."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from secateur.costs.timing import forward_pass
from secateur.network.examples import Example


def clock() -> Callable[[], float]:
    """Return the clock for short times: with one thread its own CPU time, which other load hardly changes."""
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


class Stopwatch(TorchFunctionMode):
    """While it is active, add up the seconds of every layer, from its call to that of the next one.

    >>> with Stopwatch(model) as watch:
    ...     model(images)
    >>> watch.stop()["conv1.weight"]

    A layer is a call whose second argument is a weight with two axes or more. What runs before the first layer counts
    for it.
    """

    def __init__(self, network: nn.Module, see: Callable[[str, Any, Any, Any], None] | None = None) -> None:
        super().__init__()
        weights = ((name, one) for name, one in network.named_parameters() if one.dim() >= 2)
        self._names = {id(one): name for name, one in weights}
        self._see = see
        self._seconds: dict[str, float] = defaultdict(float)
        self._current, self._since = "", 0.0
        self._clock = clock()

    def __enter__(self) -> Self:
        self._seconds, self._current, self._since = defaultdict(float), "", self._clock()
        return super().__enter__()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = self._names.get(id(args[1])) if len(args) > 1 else None
        if name is not None:
            now = self._clock()
            self._seconds[self._current or name] += now - self._since
            self._current, self._since = name, now
            if self._see is not None:
                self._see(name, func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def stop(self) -> dict[str, float]:
        """Return the seconds of every layer, after the forward pass."""
        self._seconds[self._current] += self._clock() - self._since
        return dict(self._seconds)


def layer_times(networks: Iterable[nn.Module], example: Example, rounds: int) -> list[dict[str, float]]:
    """Return for each network the milliseconds of its layers: the shortest of interleaved forward passes.

    Other load on the machine only adds to a time, and meets all networks alike.
    """
    several = list(networks)
    found: list[dict[str, list[float]]] = [defaultdict(list) for _ in several]
    for number in range(rounds + 1):
        for network, times in zip(several, found):
            with forward_pass(network, example) as run:
                watch = Stopwatch(network)
                with watch:
                    run()
                if number:  # the first pass prepares
                    for name, seconds in watch.stop().items():
                        times[name].append(1e3 * seconds)
    return [{name: min(one) for name, one in times.items()} for times in found]
