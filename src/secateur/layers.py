"""One call of a convolution or a linear layer, taken apart so that all kinds look alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from secateur.ops import CONVOLUTION, call_name
from secateur.program import named_tensors

CONVOLUTION_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
TRANSPOSED_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
LINEAR_ARGUMENTS = ("input", "weight", "bias")


@dataclass(frozen=True)
class LayerCall:
    """`conv(x, weight, stride=stride, dilation=dilation, groups=groups) + bias`, the padding already in x.

    A linear layer is the case of a kernel of one over its places; a transposed convolution comes with zeros put in
    between, and `plain` turns its weight into that of an ordinary one.
    """

    input: Tensor  # as the layer gets it
    fill: Callable[[Tensor], Tensor]  # makes x of it
    weight: Tensor  # as the layer has it
    bias: Tensor | None
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    transposed: bool = False
    linear: bool = False

    @cached_property
    def x(self) -> Tensor:
        """What the windows move over, [points, channels, *space]."""
        return self.fill(self.input)

    @property
    def kernel(self) -> tuple[int, ...]:
        """The size of the window along each axis of space."""
        return (1,) if self.linear else tuple(self.weight.shape[2:])

    @property
    def outputs(self) -> int:
        """How many channels the layer makes."""
        return self.weight.shape[1] * self.groups if self.transposed else self.weight.shape[0]

    @property
    def patches(self) -> tuple[int, ...]:
        """How many places along each axis of space the layer looks at."""
        return places(self.x.shape[2:], self.kernel, self.stride, self.dilation)

    def plain(self, weight: Tensor) -> Tensor:
        """A weight of this layer's shape as [groups, outputs, channels x kernel], as an ordinary layer has it."""
        if self.transposed:
            parts = weight.unflatten(0, (self.groups, -1)).transpose(1, 2)
            return parts.flip(tuple(range(3, parts.dim()))).flatten(2)
        return weight.unflatten(0, (self.groups, -1)).flatten(2)

    def layered(self, plain: Tensor) -> Tensor:
        """The inverse of `plain`."""
        if not self.transposed:
            return plain.flatten(0, 1).view(self.weight.shape)
        parts = plain.unflatten(2, (-1, *self.kernel))
        return parts.flip(tuple(range(3, parts.dim()))).transpose(1, 2).flatten(0, 1)

    def as_places(self, made: Tensor) -> Tensor:
        """What the layer made, as [points, outputs, places]."""
        return _over_places(made) if self.linear else made.flatten(2)

    def columns(self, chosen: Tensor | None = None) -> Tensor:
        """What the layer reads for its outputs, [groups, points, places, channels x kernel].

        chosen: only these places, counted along the flattened space.
        """
        starts = taps = torch.zeros(1, dtype=torch.int64)
        space = zip(self.x.shape[2:], self.patches, self.kernel, self.stride, self.dilation, strict=True)
        for size, count, kernel, stride, dilation in space:
            starts = (starts[:, None] * size + torch.arange(count) * stride).flatten()
            taps = (taps[:, None] * size + torch.arange(kernel) * dilation).flatten()
        if chosen is not None:
            starts = starts[chosen.cpu()]
        at = (starts[:, None] + taps).flatten().to(self.x.device)
        found = self.x.flatten(2).index_select(2, at)  # [points, channels, places x kernel]
        found = found.view(len(found), self.groups, self.x.shape[1] // self.groups, len(starts), len(taps))
        return found.permute(1, 0, 3, 2, 4).flatten(3)


def take_apart(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LayerCall | None:
    """The call of a layer; None for a call of another kind, or on a single point without its batch axis.

    >>> take_apart("conv2d", (x, weight, bias), {"padding": 1}).patches
    (32, 32)
    """
    if name == "linear":
        call = {**dict(zip(LINEAR_ARGUMENTS, args, strict=False)), **kwargs}
        x = call["input"]
        if x.dim() < 2:
            return None
        return LayerCall(x, _over_places, call["weight"], call.get("bias"), (1,), (1,), linear=True)
    match = CONVOLUTION.match(name)
    if match is None:
        return None
    transposed, count = bool(match[1]), int(match[2])
    call = {**dict(zip(TRANSPOSED_ARGUMENTS if transposed else CONVOLUTION_ARGUMENTS, args, strict=False)), **kwargs}
    x, weight = call["input"], call["weight"]
    if x.dim() != count + 2:
        return None
    stride, dilation = (spread(call.get(key, 1), count) for key in ("stride", "dilation"))
    kernel = tuple(weight.shape[2:])
    if transposed:
        padding, more = (spread(call.get(key, 0), count) for key in ("padding", "output_padding"))
        fill = partial(stuffed, kernel=kernel, stride=stride, padding=padding, more=more, dilation=dilation)
        stride = (1,) * count
    else:
        fill = partial(padded, kernel=kernel, padding=call.get("padding", 0), dilation=dilation)
    return LayerCall(x, fill, weight, call.get("bias"), stride, dilation, call.get("groups", 1), transposed)


def _over_places(x: Tensor) -> Tensor:
    return x.reshape(len(x), -1, x.shape[-1]).transpose(1, 2)


def places(
    space: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[int, ...]:
    """How many windows fit along each axis of space."""
    sizes = zip(space, kernel, stride, dilation, strict=True)
    return tuple((n - d * (k - 1) - 1) // s + 1 for n, k, s, d in sizes)


def spread(value: Any, count: int) -> tuple[int, ...]:
    """One number for each axis of space."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * count if len(values) == 1 else values


def padded(x: Tensor, kernel: tuple[int, ...], padding: Any, dilation: tuple[int, ...]) -> Tensor:
    """The input with the zeros around it that the layer adds itself."""
    if padding == "same":
        total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        sides = [(t // 2, t - t // 2) for t in total]
    else:
        sides = [(p, p) for p in spread(0 if padding == "valid" else padding, len(kernel))]
    flat = [side for pair in reversed(sides) for side in pair]
    return F.pad(x, flat) if any(flat) else x


def stuffed(
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
    inner = wide
    for axis, s in enumerate(stride, 2):
        inner = inner.movedim(axis, 0)[::s].movedim(0, axis)
    inner.copy_(x)
    sides = [(d * (k - 1) - p, d * (k - 1) - p + m) for k, d, p, m in zip(kernel, dilation, padding, more, strict=True)]
    return F.pad(wide, [side for pair in reversed(sides) for side in pair])


Run = Callable[[Tensor | None], Tensor]  # runs the layer, with another weight if one is given


class AtLayers(TorchFunctionMode):
    """While it is on, `act(name, call, run)` stands in for every layer whose weight is a tensor of the network.

    >>> def act(name, call, run):
    ...     print(name, tuple(call.x.shape))
    ...     return run(None)
    >>> with AtLayers(model, act):
    ...     model(images)
    """

    def __init__(self, network: nn.Module, act: Callable[[str, LayerCall, Run], Tensor]) -> None:
        super().__init__()
        self.act = act
        self.names = {id(tensor): name for name, tensor in named_tensors(network).items()}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = call_name(func)
        if name == "linear" or CONVOLUTION.match(name):
            weight = args[1] if len(args) > 1 else kwargs["weight"]
            call = take_apart(name, args, kwargs) if id(weight) in self.names else None
            if call is not None:
                return self.act(self.names[id(weight)], call, lambda other: _run(func, args, kwargs, other))
        return func(*args, **kwargs)


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], weight: Tensor | None) -> Tensor:
    if weight is None:
        return func(*args, **kwargs)
    if len(args) > 1:
        return func(args[0], weight, *args[2:], **kwargs)
    return func(*args, **{**kwargs, "weight": weight})
