"""Run a network again from a layer on: what comes before it is not computed again.

A first run records the calls, and keeps the results that are still in use at the layer. In later runs, the calls before
the layer return those, or tensors without values where nobody uses the result any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from secateur._torch import pytree
from secateur.network.batches import Call
from secateur.network.layer_calls import FunctionCall, LayerCall
from secateur.network.observer import Observer
from secateur.refit.fisher import Act, Run

SHAPES = {  # calls that return no tensor and do not depend on values; others may decide the way that forward takes
    *("size", "dim", "ndimension", "numel", "nelement", "stride", "len", "device", "get_device", "element_size"),
    *("is_contiguous", "is_floating_point", "is_complex", "is_nested", "finfo", "iinfo"),
}
ATTRIBUTE = "__get__"


@dataclass
class Recording:
    """The calls of a forward pass, with the layers among them.

    Attributes:
        layers: the number of calls that returned a tensor before the first call of each layer.
        last: for each of these calls, the last one that uses its result; itself if none does.
        bytes: of each result.
        fixed: the number of the first call that may depend on values; no later run can begin behind it.
    """

    layers: dict[str, int] = field(default_factory=dict)
    last: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    fixed: float = float("inf")

    @classmethod
    def of(cls, run: Run, batch: Call) -> Recording:
        """Run the network on a few samples."""
        found, results = cls(), dict[int, tuple[int, Tensor]]()  # by id, with the tensor, so that its id stays

        def at(call: FunctionCall) -> Any:
            for leaf in pytree.tree_leaves((call.args, call.kwargs)):
                if isinstance(leaf, Tensor) and id(leaf) in results:
                    found.last[results[id(leaf)][0]] = call.number
            result = call.run()
            leaves = pytree.tree_leaves((call.args[1:], call.kwargs))
            if isinstance(result, Tensor):
                if any(result is leaf for leaf in leaves):  # written to out=
                    found.fixed = min(found.fixed, call.number)
                results[id(result)] = call.number, result
                found.last.append(call.number)
                found.bytes.append(result.nbytes)
            elif call.name not in SHAPES and not (call.name == ATTRIBUTE and _is_plain(result)):
                found.fixed = min(found.fixed, call.number)
            return result

        observer = Observer(at)

        def act(layer: LayerCall, call: FunctionCall) -> Tensor:
            found.layers.setdefault(layer.name, observer.number)
            return _plain(layer, call)

        with observer:
            outputs = run(batch, act)
        for output in outputs:
            if id(output) in results:
                found.last[results[id(output)][0]] = float("inf")
        return found

    def start(self, names: Collection[str]) -> int:
        """Return the call before which a run that changes these layers can begin."""
        first = min((self.layers[name] for name in names if name in self.layers), default=0)
        return first if first <= self.fixed else 0

    def used_from(self, start: int) -> list[int]:
        """Return the earlier calls whose results are used from this call on."""
        return [number for number in range(min(start, len(self.last))) if self.last[number] >= start]


@dataclass
class Resumed:
    """A batch on which the network has run, and runs again from several places.

    >>> resumed = Resumed(run, batch, recording, [12, 40])
    >>> resumed.outputs
    >>> resumed.run_from(40, act)
    """

    run: Run
    batch: Call
    recording: Recording
    starts: Collection[int]
    outputs: list[Tensor] = field(init=False)  # of the network itself
    _kept: dict[int, dict[int, Tensor]] = field(init=False, default_factory=dict)  # for each start, results by call
    _empty: list[tuple[Callable[[], Tensor], bool]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        """Run the network and keep what is needed."""
        used = {start: self.recording.used_from(start) for start in sorted(set(self.starts)) if start}
        wanted = {number for numbers in used.values() for number in numbers}
        results: dict[int, Tensor] = {}
        most = max(used, default=0)

        def at(call: FunctionCall) -> Any:
            if call.number in used and call.number not in self._kept:
                self._kept[call.number] = {number: results[number].clone() for number in used[call.number]}
            result = call.run()
            if isinstance(result, Tensor) and call.number < most:
                if call.number in wanted:
                    results[call.number] = result
                self._empty.append((_Empty(result), bool(call.args) and result is call.args[0]))
            return result

        with Observer(at):
            self.outputs = self.run(self.batch, _plain)

    def run_from(self, start: int, act: Act) -> list[Tensor]:
        """Return the outputs of the network with an action at each layer from a call on."""
        kept = self._kept.get(start, {})

        def at(call: FunctionCall) -> Any:
            if call.number >= start or not self._returns_tensor(call):
                return call.run()
            new, in_place = self._empty[call.number]
            value = kept.get(call.number)
            if in_place:
                return call.args[0] if value is None else call.args[0].copy_(value)
            return new() if value is None else value.clone()

        with Observer(at):
            return self.run(self.batch, act)

    @staticmethod
    def _returns_tensor(call: FunctionCall) -> bool:
        return call.name not in SHAPES and not (call.name == ATTRIBUTE and _is_plain(call.run()))


@dataclass
class _Empty:
    """Makes tensors like another one, without values."""

    like: Tensor

    def __post_init__(self) -> None:
        one = self.like
        self.like = one.new_empty(0)
        self.shape = one.shape

    def __call__(self) -> Tensor:
        return self.like.new_empty(self.shape)


def _is_plain(value: Any) -> bool:
    return not any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(value))


def _plain(layer: LayerCall, call: FunctionCall) -> Tensor:
    output: Tensor = call.run()
    return output
