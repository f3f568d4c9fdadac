"""Run a network and see what each layer reads: every convolution and product, as one plain convolution."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from secateur.layers import places, take_apart
from secateur.ops import CONVOLUTION, MOVEMENT, SCALING, call_name
from secateur.program import named_tensors
from secateur.ties import Slot

PRODUCTS = {"linear": 0, "matmul": 0, "mm": 0, "bmm": 0, "addmm": 1}  # where the two factors begin
CALLED = ("input", "weight")


@dataclass(frozen=True)
class Read:
    """One layer at work: `conv(x, weight, stride=stride, dilation=dilation)`, without padding, groups or bias.

    Linear layers are the case without space, transposed convolutions come with zeros put in between, and a grouped
    layer gives one reading for each of its groups.
    """

    slot: Slot
    places: Tensor  # for each channel its index along the slot
    x: Tensor  # [points, channels, *space]
    weight: Tensor  # [outputs, channels, *kernel]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def patches(self) -> tuple[int, ...]:
        """How many places along each axis of space the layer looks at."""
        return places(self.x.shape[2:], tuple(self.weight.shape[2:]), self.stride, self.dilation)


@dataclass(frozen=True)
class Known:
    """A tensor that is a parameter, or was moved or scaled from one; `index` says where each element came from."""

    tensor: Tensor  # held, so that no other tensor takes its identity
    name: str
    index: Tensor


class Watch(TorchFunctionMode):
    """While it is on, `see` gets every reading of the wanted slots.

    >>> with torch.no_grad(), Watch(model, wanted, see):
    ...     model(images)
    """

    def __init__(self, model: nn.Module, wanted: Mapping[str, tuple[Slot, ...]], see: Callable[[Read], None]) -> None:
        super().__init__()
        self.wanted = wanted  # parameter name -> its slots
        self.see = see
        tensors = named_tensors(model)
        self.tensors = {name: tensors[name] for name in wanted}
        self.known = {id(tensor): Known(tensor, name, _places(tensor)) for name, tensor in self.tensors.items()}

    def __enter__(self) -> Watch:
        """Forget what earlier passes computed from the parameters."""
        for key in [key for key, known in self.known.items() if known.tensor is not self.tensors[known.name]]:
            del self.known[key]
        return super().__enter__()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = call_name(func)
        if name in PRODUCTS or CONVOLUTION.match(name):
            for read in self._reads(name, args, kwargs):
                self.see(read)
        result = func(*args, **kwargs)
        if args and id(args[0]) in self.known and isinstance(result, Tensor):
            self._follow(name, func, args, kwargs, result)
        return result

    def _follow(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
        """A weight that is moved or scaled before it is used is still that weight."""
        origin = self.known[id(args[0])]
        if name in MOVEMENT or name == "__get__":  # the latter is a property, such as .T
            index = func(origin.index, *args[1:], **kwargs)
        elif name in SCALING and result.shape == origin.index.shape:
            index = origin.index
        else:
            return
        if index.shape == result.shape and index.dtype == origin.index.dtype:
            self.known[id(result)] = Known(result, origin.name, index)

    def _reads(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Read]:
        if name not in PRODUCTS:
            yield from self._convolution(name, args, kwargs)
            return
        first = PRODUCTS[name]
        if name == "linear":
            left = args[0] if args else kwargs["input"]
            right = args[1] if len(args) > 1 else kwargs["weight"]
        else:
            left, right = args[first], args[first + 1] if len(args) > first + 1 else next(iter(kwargs.values()))
        if id(right) in self.known and right.dim() == 2:
            x, weight, known = left, right, self.known[id(right)]
            index = known.index if name == "linear" else known.index.T
            weight = weight if name == "linear" else weight.T
        elif id(left) in self.known and left.dim() == 2 and name != "linear":
            weight, known = left, self.known[id(left)]
            x, index = right.transpose(-1, -2) if right.dim() > 1 else right, known.index
        else:
            return
        if x.dim() == 1:
            x = x[None]
        x = x.reshape(len(x), -1, x.shape[-1]).transpose(1, 2)  # [points, channels, places]
        for slot, at in self._slots(known.name, index[0]):
            yield Read(slot, at, x, weight[..., None], (1,), (1,))

    def _slots(self, name: str, index: Tensor) -> Iterator[tuple[Slot, Tensor]]:
        """The wanted slots that run along these elements of a tensor, and the index of each along the slot."""
        shape = self.tensors[name].shape
        for slot in self.wanted[name]:
            at = index // math.prod(shape[slot.axis + 1 :]) % shape[slot.axis]
            if len(at.unique()) == shape[slot.axis]:
                yield slot, at

    def _convolution(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Read]:
        weight = args[1] if len(args) > 1 else kwargs["weight"]
        if id(weight) not in self.known:
            return
        known, space = self.known[id(weight)], weight.dim() - 2
        x = args[0] if args else kwargs["input"]
        if x.dim() == space + 1:
            args, kwargs = (x[None], weight, *args[2:]), {k: v for k, v in kwargs.items() if k not in CALLED}
        call = take_apart(name, args, kwargs)
        assert call is not None
        index = known.index.flatten(2)[:, :, 0]
        for slot, at in self._slots(known.name, index[:, 0] if call.transposed else index[0]):
            parts = at.chunk(call.groups) if call.transposed else (at,) * call.groups
            weights = (
                call.plain(weight).unflatten(2, (-1, *call.kernel)) if call.transposed else weight.chunk(call.groups)
            )
            for part, x, w in zip(parts, call.x.chunk(call.groups, 1), weights, strict=True):
                yield Read(slot, part, x, w, call.stride, call.dilation)


def _places(tensor: Tensor) -> Tensor:
    return torch.arange(tensor.numel(), device=tensor.device).view(tensor.shape)
