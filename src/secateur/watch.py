"""Run a network and see what each layer reads: every convolution and product, as one plain convolution."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from secateur.ops import CONVOLUTION, MOVEMENT, SCALING
from secateur.program import named_tensors
from secateur.ties import Slot

PRODUCTS = {"linear": 0, "matmul": 0, "mm": 0, "bmm": 0, "addmm": 1}  # where the two factors begin
CONVOLUTION_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
TRANSPOSED_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")


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
        sizes = zip(self.x.shape[2:], self.weight.shape[2:], self.stride, self.dilation, strict=True)
        return tuple((n - d * (k - 1) - 1) // s + 1 for n, k, s, d in sizes)


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
        name = _name(func)
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
        for slot, places in self._slots(known.name, index[0]):
            yield Read(slot, places, x, weight[..., None], (1,), (1,))

    def _slots(self, name: str, index: Tensor) -> Iterator[tuple[Slot, Tensor]]:
        """The wanted slots that run along these elements of a tensor, and the index of each along the slot."""
        shape = self.tensors[name].shape
        for slot in self.wanted[name]:
            places = index // math.prod(shape[slot.axis + 1 :]) % shape[slot.axis]
            if len(places.unique()) == shape[slot.axis]:
                yield slot, places

    def _convolution(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Read]:
        match = CONVOLUTION.match(name)
        assert match is not None
        transposed, count = bool(match[1]), int(match[2])
        names = TRANSPOSED_ARGUMENTS if transposed else CONVOLUTION_ARGUMENTS
        call = {**dict(zip(names, args, strict=False)), **kwargs}
        if id(call["weight"]) not in self.known:
            return
        known, weight = self.known[id(call["weight"])], call["weight"]
        x = call["input"] if call["input"].dim() == count + 2 else call["input"][None]
        stride, dilation = (_spread(call.get(key, 1), count) for key in ("stride", "dilation"))
        if transposed:
            padding, more = (_spread(call.get(key, 0), count) for key in ("padding", "output_padding"))
            x = _stuffed(x, weight.shape[2:], stride, padding, more, dilation)
            stride = (1,) * count
        else:
            x = _padded(x, weight.shape[2:], call.get("padding", 0), dilation)
        groups = call.get("groups", 1)
        index = known.index.flatten(2)[:, :, 0]
        for slot, places in self._slots(known.name, index[:, 0] if transposed else index[0]):
            parts = places.chunk(groups) if transposed else (places,) * groups
            for at, part, w in zip(parts, x.chunk(groups, 1), weight.chunk(groups, 0), strict=True):
                plain = w.transpose(0, 1).flip(tuple(range(2, count + 2))) if transposed else w
                yield Read(slot, at, part, plain, stride, dilation)


def _name(func: Any) -> str:
    """`conv2d` for torch's function, the method and the op of a program alike."""
    name = getattr(func, "_opname", None) or getattr(func, "__name__", "")
    if name in ("__matmul__", "__rmatmul__"):
        return "matmul"
    return str(name) if name == "__get__" else str(name).strip("_")


def _places(tensor: Tensor) -> Tensor:
    return torch.arange(tensor.numel(), device=tensor.device).view(tensor.shape)


def _spread(value: Any, count: int) -> tuple[int, ...]:
    """One number for each axis of space."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * count if len(values) == 1 else values


def _padded(x: Tensor, kernel: tuple[int, ...], padding: Any, dilation: tuple[int, ...]) -> Tensor:
    if padding == "same":
        total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        sides = [(t // 2, t - t // 2) for t in total]
    else:
        sides = [(p, p) for p in _spread(0 if padding == "valid" else padding, len(kernel))]
    flat = [side for pair in reversed(sides) for side in pair]
    return F.pad(x, flat) if any(flat) else x


def _stuffed(
    x: Tensor,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    more: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Tensor:
    """The input with which a transposed convolution is an ordinary one: zeros between its elements and around."""
    space = [(n - 1) * s + 1 for n, s in zip(x.shape[2:], stride, strict=True)]
    wide = x.new_zeros(*x.shape[:2], *space)
    places = wide
    for axis, s in enumerate(stride, 2):
        places = places.movedim(axis, 0)[::s].movedim(0, axis)
    places.copy_(x)
    sides = [(d * (k - 1) - p, d * (k - 1) - p + m) for k, d, p, m in zip(kernel, dilation, padding, more, strict=True)]
    return F.pad(wide, [side for pair in reversed(sides) for side in pair])
