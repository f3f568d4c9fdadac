"""Run the original and the smaller network side by side over all batches, stopping wherever a layer can be fitted."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from secateur.batches import Call, on_device_of
from secateur.errors import SecateurError
from secateur.layers import LayerCall, take_apart
from secateur.ops import call_name
from secateur.program import first_line, mode, owner
from secateur.tape import Counting, Site, may_belong_to_a_site


@dataclass(frozen=True)
class Stop:
    """What one network knows where a layer can be fitted."""

    call: LayerCall
    made: Tensor | None  # what the layer made, [points, outputs, places]; the smaller network has not run it yet
    other: Tensor | None  # the other operand of the sum it goes into, [points, outputs, places]


@dataclass
class _Seen:
    """A call that was seen and will be needed again."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    version: int = 0  # of what it read: another one later means that it was overwritten
    result: Tensor | None = None

    @property
    def input(self) -> Tensor:
        """What it read."""
        return self.args[0] if self.args else self.kwargs["input"]

    def again(self, x: Tensor) -> Tensor:
        """Call it on this."""
        if self.args:
            return self.func(x, *self.args[1:], **self.kwargs)
        return self.func(**{**self.kwargs, "input": x})


class _Abandoned(Exception):
    """The other side has given up."""


class _Lane(Counting):
    """One network on one batch, in a thread of its own that runs only while it is its turn."""

    def __init__(self, network: nn.Module, batch: Call, sites: Sequence[Site], original: bool) -> None:
        super().__init__()
        self.network, self.batch, self.original = network, batch, original
        self.layers = {site.step: site for site in sites}
        self.norms = {site.norm.step for site in sites if site.norm and site.sum is not None}
        self.ends = {site.end: site for site in sites}
        self.seen: dict[int, _Seen] = {}
        self.stop: Stop | None = None
        self.error: BaseException | None = None
        self.given_up = False
        self._mine, self._theirs = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def advance(self) -> Stop | None:
        """Run to the next stop; None at the end."""
        self.stop = None
        self._mine.release()
        self._theirs.acquire()
        if self.error is not None:
            raise self.error
        return self.stop

    def abandon(self) -> None:
        """End the thread where it stands."""
        self.given_up = True
        self._mine.release()
        self.thread.join()

    def _run(self) -> None:
        self._mine.acquire()
        try:
            if not self.given_up:
                args, kwargs = on_device_of(self.network, self.batch)
                with torch.no_grad(), self:
                    self.network(*args, **kwargs)
        except _Abandoned:
            pass
        except BaseException as error:
            self.error = error
        self.seen.clear()
        self.stop = None
        self._theirs.release()

    def _wait(self, stop: Stop) -> None:
        self.stop = stop
        self._theirs.release()
        self._mine.acquire()
        if self.given_up:
            raise _Abandoned

    def at(self, number: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not may_belong_to_a_site(
            call_name(func)
        ):  # a call that gives no tensor has the number of the next that does
            return func(*args, **kwargs)
        end = self.ends.get(number)
        if end is not None and end.sum is not None:
            self._at_sum(end, args)
        elif end is not None and not self.original:
            self._wait(self._alone(func, args, kwargs, None))
        if number in self.norms or (number in self.layers and number not in self.ends):
            self.seen[number] = seen = _Seen(func, args, kwargs)
            seen.version = seen.input._version
        result = func(*args, **kwargs)
        if self.original and number in self.layers:
            if end is not None:
                self._wait(self._alone(func, args, kwargs, result))
            else:
                self.seen[number].result = result
        return result

    def _alone(self, func: Any, args: Any, kwargs: Any, result: Tensor | None) -> Stop:
        call = _taken_apart(func, args, kwargs)
        return Stop(call, None if result is None else call.as_places(result), None)

    def _at_sum(self, site: Site, args: tuple[Any, ...]) -> None:
        layer = self.seen.pop(site.step)
        norm = self.seen.pop(site.norm.step) if site.norm else None
        if layer.input._version != layer.version:
            raise SecateurError(
                "what the layer reads is overwritten before its result is added up",
                layer=owner(site.weight),
                remedy="take the in-place call out of forward",
            )
        call = _taken_apart(layer.func, layer.args, layer.kwargs)
        own, other = args[site.place], args[1 - site.place]
        made = None if layer.result is None else call.as_places(layer.result)
        self._wait(Stop(call, made, call.as_places(other.expand_as(own))))
        if not self.original:  # in place, since forward may hold it too: `out.add_(x)`
            again = layer.again(layer.input)
            own.copy_(norm.again(again) if norm else again)


def _taken_apart(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LayerCall:
    call = take_apart(call_name(func), args, kwargs)
    assert call is not None
    return call


def side_by_side(
    original: nn.Module, small: nn.Module, batches: Sequence[Call], sites: Sequence[Site]
) -> Generator[tuple[Site, Iterator[tuple[Stop, Stop]]]]:
    """For each site in the order in which they are reached: the stops of both networks, batch by batch.

    >>> for site, stops in side_by_side(model, small, batches, sites):
    ...     for ours, theirs in stops:
    ...         ...  # and then change the smaller network's weights: it goes on with the new ones
    """
    with ExitStack() as stack:
        stack.enter_context(mode(original, False))
        stack.enter_context(mode(small, False))
        pairs: list[tuple[_Lane, _Lane]] = []
        for batch in batches:
            pairs.append((_Lane(original, batch, sites, True), _Lane(small, batch, sites, False)))
            for lane in pairs[-1]:
                stack.callback(lane.abandon)
        for site in sorted(sites, key=lambda site: site.end):
            yield site, _stops(pairs)


def _stops(pairs: Sequence[tuple[_Lane, _Lane]]) -> Iterator[tuple[Stop, Stop]]:
    for ours, theirs in pairs:
        try:
            first, second = ours.advance(), theirs.advance()
        except SecateurError:
            raise
        except Exception as error:
            raise _apart(theirs, first_line(error)) from error
        if first is None or second is None:
            raise _apart(theirs, "one of them is done before the other")
        yield first, second


def _apart(lane: _Lane, cause: str) -> SecateurError:
    return SecateurError(
        f"the networks could not run side by side: {cause}",
        layer=type(lane.network).__name__,
        remedy="give the network that the plan was made for, and the one that it left",
    )
