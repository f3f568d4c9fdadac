"""Observe the calls of torch functions in a forward pass, above all those of layers, and stand in for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Self

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from secateur.network.layer_calls import FunctionCall, GroupCall, LayerCall, Weight, layer_call
from secateur.network.modules import Slot, named_tensors
from secateur.network.operations import MOVEMENT, SCALING, call_name


class Observer(TorchFunctionMode):
    """While it is active, `act(call)` stands in for every call of a torch function.

    >>> def act(call):
    ...     print(call.number, call.name)
    ...     return call.run()
    >>> with Observer(act):
    ...     model(images)
    """

    def __init__(self, act: Callable[..., Any]) -> None:
        super().__init__()
        self.act = act
        self.number = 0

    def __enter__(self) -> Self:
        self.number = 0
        return super().__enter__()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = self.at(FunctionCall(self.number, call_name(func), func, args, kwargs or {}))
        self.number += isinstance(result, Tensor)
        return result

    def at(self, call: FunctionCall) -> Any:
        """Return what the call is to return."""
        return self.act(call)


class LayerObserver(Observer):
    """While it is active, `act(layer, call)` stands in for every layer whose weight is a tensor of the network.

    A weight that is moved or scaled before it is used is still that weight.

    >>> def act(layer, call):
    ...     print(layer.name, tuple(layer.x.shape))
    ...     return call.run()
    >>> with LayerObserver(model, act):
    ...     model(images)

    Args:
        names: the parameters and buffers whose layers are observed; all if not given.
    """

    def __init__(
        self, network: nn.Module, act: Callable[[LayerCall, FunctionCall], Any], names: Iterable[str] | None = None
    ) -> None:
        super().__init__(act)
        tensors = named_tensors(network)
        observed = {name: tensors[name] for name in (tensors if names is None else names)}
        self.parameters = {id(tensor): Weight(tensor, name, tensor.shape) for name, tensor in observed.items()}
        self.weights = dict(self.parameters)

    def __enter__(self) -> Self:
        self.weights = dict(self.parameters)  # without those that an earlier pass derived
        return super().__enter__()

    def at(self, call: FunctionCall) -> Any:
        """Run the call, or let `act` do so if it is a layer."""
        layer = layer_call(call, self.weights)
        result = call.run() if layer is None else self.act(layer, call)
        source = self.weights.get(id(call.args[0])) if call.args else None
        if source is not None and isinstance(result, Tensor) and id(result) not in self.weights:
            self._follow(call, source, result)
        return result

    def _follow(self, call: FunctionCall, source: Weight, result: Tensor) -> None:
        """Count a tensor that is moved or scaled from a weight as that weight."""
        if call.name in MOVEMENT or call.name == "__get__":  # the latter is a property, such as .T
            index = call.run(input=source.index)
        elif call.name in SCALING and result.shape == source.tensor.shape:
            index = source.index
        else:
            return
        if isinstance(index, Tensor) and index.shape == result.shape and index.dtype == source.index.dtype:
            self.weights[id(result)] = Weight(result, source.name, source.shape, index)


def observe_slots(network: nn.Module, slots: Iterable[Slot], see: Callable[[GroupCall], None]) -> LayerObserver:
    """Return an observer that calls `see` with each group of every layer whose input channels lie along such a slot.

    >>> with observe_slots(model, [Slot("conv2.weight", 1)], print):
    ...     model(images)
    """
    wanted: dict[str, list[Slot]] = defaultdict(list)
    for slot in sorted(slots):
        wanted[slot.parameter].append(slot)

    def act(layer: LayerCall, call: FunctionCall) -> Any:
        for group in layer.along(wanted[layer.name]):
            see(group)
        return call.run()

    return LayerObserver(network, act, wanted)
