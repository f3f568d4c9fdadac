"""Run the original and the cut network in lockstep over all batches, with a pause wherever a layer can be refitted."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from secateur._torch import version_of
from secateur.errors import SecateurError, first_line
from secateur.network.batches import Call, batch_size, float_tensors, on_device_of
from secateur.network.layer_calls import FunctionCall, LayerCall, layer_call
from secateur.network.memory import out_of_memory
from secateur.network.modules import mode, owner, stand_in
from secateur.network.observer import Observer
from secateur.refit.tape import RefitLayer, may_be_refitted
from secateur.stages import stage

Ends = tuple[list[Tensor], list[Tensor]]  # the outputs of the original and of the cut network
STACK = 1 << 20  # bytes for each thread; where address space is limited, the usual 8 MB for each are too much


@dataclass(frozen=True)
class Pause:
    """The state of one network where a layer can be refitted."""

    call: LayerCall
    output: Tensor | None  # of the layer, [samples, outputs, positions]; the cut network has not run it yet
    other: Tensor | None  # the other operand of the sum that the output goes into, [samples, outputs, positions]


@dataclass
class _Kept:
    """A call that is needed again at the sum that its result goes into."""

    call: FunctionCall
    version: int  # of its input; another one later means that it was overwritten
    result: Tensor | None = None


class _Abandoned(Exception):
    """Nobody waits for this network any more."""


class _Run:
    """One network on one batch, in a thread of its own that runs only from one pause to the next."""

    def __init__(self, network: nn.Module, batch: Call, layers: Sequence[RefitLayer], original: bool) -> None:
        self.network, self.batch, self.original = network, batch, original
        self.layers = {layer.step for layer in layers}
        self.norms = {layer.norm.step for layer in layers if layer.norm and layer.sum is not None}
        self.ends = {layer.end: layer for layer in layers}
        self.kept: dict[int, _Kept] = {}
        self.pause: Pause | None = None
        self.outputs: list[Tensor] = []  # of the network, at the end
        self.error: BaseException | None = None
        self.abandoned = False
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, daemon=True)
        usual = threading.stack_size(STACK)
        try:
            self.thread.start()
        finally:
            threading.stack_size(usual)

    def start(self) -> None:
        """Begin to run to the next pause."""
        self.pause = None
        self._go.release()

    def wait(self) -> None:
        """Wait until the next pause is reached, or the end."""
        self._paused.acquire()

    def result(self) -> Pause | None:
        """Return the pause that was reached; None at the end."""
        if self.error is not None:
            raise self.error
        return self.pause

    def abandon(self) -> None:
        """End the thread where it is."""
        self.abandoned = True
        self._go.release()
        self.thread.join()

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self.abandoned:
                args, kwargs = on_device_of(self.network, self.batch)
                with torch.no_grad(), Observer(self._at):
                    self.outputs = float_tensors(self.network(*args, **kwargs))
        except _Abandoned:
            pass
        except BaseException as error:
            self.error = error
        self.kept.clear()
        self.pause = None
        self._paused.release()

    def _wait(self, call: LayerCall, output: Tensor | None, other: Tensor | None = None) -> None:
        self.pause = Pause(call, None if output is None else call.by_position(output), other)
        self._paused.release()
        self._go.acquire()
        if self.abandoned:
            raise _Abandoned

    def _at(self, call: FunctionCall) -> Any:
        number = call.number
        if not may_be_refitted(call.name):  # a call that returns no tensor has the number of the next that does
            return call.run()
        end = self.ends.get(number)
        if end is not None and end.sum is not None:
            self._at_sum(end, call.args)
        elif end is not None and not self.original:
            self._wait(_layer(call), None)
        kept = number in self.norms or (number in self.layers and end is None)
        if kept:
            self.kept[number] = _Kept(call, version_of(call.input))
            if not self.original:  # it runs again at the sum, with the new weights; until then nobody uses its result
                return _without_values(call)
        result = call.run()
        if self.original and number in self.layers:
            if kept:
                self.kept[number].result = result
            else:
                self._wait(_layer(call), result)
        return result

    def _at_sum(self, layer: RefitLayer, operands: tuple[Any, ...]) -> None:
        kept = self.kept.pop(layer.step)
        norm = self.kept.pop(layer.norm.step) if layer.norm else None
        if version_of(kept.call.input) != kept.version:
            raise SecateurError(
                "its input is overwritten before its output is added to another result",
                layer=owner(layer.weight),
                remedy="remove the in-place operation from forward",
            )
        call = _layer(kept.call)
        own, other = operands[layer.operand], operands[1 - layer.operand]
        self._wait(call, kept.result, call.by_position(other.expand_as(own)))
        if not self.original:  # in place, since forward may hold it too: `out.add_(x)`
            again = kept.call.run()
            own.copy_(norm.call.run(input=again) if norm else again)


def _without_values(call: FunctionCall) -> Tensor:
    """Return a tensor of the shape of the result of a layer or a norm; its values are of no use."""
    if call.name == "batch_norm":
        return torch.empty_like(call.input)
    layer = _layer(call)
    shape = (
        (*call.input.shape[:-1], layer.outputs) if layer.linear else (len(call.input), layer.outputs, *layer.positions)
    )
    return call.input.new_empty(shape)


def _layer(call: FunctionCall) -> LayerCall:
    found = layer_call(call)
    assert found is not None
    return found


def in_lockstep(
    original: nn.Module,
    small: nn.Module,
    batches: Sequence[Call],
    layers: Sequence[RefitLayer],
    stateful: bool = False,
    counts: Sequence[int] | None = None,
    judged: Mapping[int, slice] | None = None,
    ends: dict[int, Ends] | None = None,
) -> Generator[tuple[RefitLayer, Iterator[tuple[Pause, Pause]]]]:
    """Return, for each layer in the order in which they are reached, the pauses of both networks, batch by batch.

    >>> for layer, pauses in in_lockstep(model, small, batches, layers):
    ...     for ours, theirs in pauses:
    ...         ...  # and then change the weights of the cut network, which goes on with the new ones

    Args:
        stateful: the networks take another path when a batch has the size of the one before, such as a detector that
            keeps its anchors. Each batch then has copies of its own, with shared weights, that have run on it before.
        counts: how many of the batches pause at each layer, never fewer than at the layer before; all if not given. The
            others start later, and run up to the layer where they join.
        judged: the batches, by their place, that run on to the end behind the last layer, and which of their samples.
        ends: takes the outputs of both networks on these samples, where every output has a row for each sample.
    """
    with ExitStack() as stack:
        stack.enter_context(mode(original, False))
        stack.enter_context(mode(small, False))
        pairs: list[tuple[_Run, _Run]] = []

        def start(batch: Call, passed: int) -> None:
            ours, theirs = (_after(network, batch) if stateful else network for network in (original, small))
            pairs.append((_Run(ours, batch, layers, True), _Run(theirs, batch, layers, False)))
            for run in pairs[-1]:
                stack.callback(run.abandon)
            for _ in range(passed):
                next(_pauses(pairs[-1:]))

        for number, layer in enumerate(sorted(layers, key=lambda layer: layer.end)):
            for batch in batches[len(pairs) : None if counts is None else counts[number]]:
                start(batch, number)
            yield layer, _pauses(pairs)
        for place, which in (judged or {}).items():
            if ends is not None and place < len(pairs):
                found = _to_the_end(pairs[place], which)
                if found is not None:
                    ends[place] = found


def _to_the_end(pair: tuple[_Run, _Run], which: slice) -> Ends | None:
    """Let both networks of a pair run to the end, and return their outputs on some of the samples.

    None if an output has no row for each sample, such as the scores of all pixels: its samples are then not known.
    """
    size = batch_size(pair[0].batch)
    found = []
    for run in pair:
        run.start()
        run.wait()
        run.result()
        by_sample = all(one.dim() and len(one) == size for one in run.outputs)
        found.append([one[which].clone() for one in run.outputs] if by_sample else None)
        run.outputs = []
    return None if found[0] is None or found[1] is None else (found[0], found[1])


@torch.no_grad()
def _after(network: nn.Module, batch: Call) -> nn.Module:
    """Return a copy of the network, with the same weights, that has run on a batch."""
    copy = stand_in(network)
    args, kwargs = on_device_of(copy, batch)
    copy(*args, **kwargs)
    return copy


def _pauses(pairs: Sequence[tuple[_Run, _Run]]) -> Iterator[tuple[Pause, Pause]]:
    """Return the next pauses of all pairs.

    Both networks of a pair run at the same time, while the pause of the pair before is used. Two batches never run at
    the same time in one network, whose forward may store something in it.
    """
    for number, (ours, theirs) in enumerate(pairs):
        if number == 0:
            _start(pairs[0])
        with stage("repair: forward passes"):
            ours.wait()
            theirs.wait()
        try:
            first, second = ours.result(), theirs.result()
        except SecateurError:
            raise
        except Exception as error:
            raise out_of_memory(error) or _no_lockstep(theirs, first_line(error)) from error
        if first is None or second is None:
            raise _no_lockstep(theirs, "one of them ends before the other")
        if number + 1 < len(pairs):
            _start(pairs[number + 1])
        yield first, second


def _start(pair: tuple[_Run, _Run]) -> None:
    for run in pair:
        run.start()


def _no_lockstep(run: _Run, cause: str) -> SecateurError:
    return SecateurError(
        f"the original and the cut network could not run in lockstep: {cause}",
        layer=type(run.network).__name__,
        remedy="pass the network that the plan was made for, and the one cut by this plan",
    )
