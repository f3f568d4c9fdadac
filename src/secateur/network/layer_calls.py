"""Calls of torch functions, above all of layers: convolutions, linear layers and products in one form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from secateur.network.modules import Slot
from secateur.network.operations import CONVOLUTION

CONVOLUTION_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
TRANSPOSED_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
PRODUCTS = {"matmul": ("input", "other"), "mm": ("input", "mat2"), "addmm": ("input", "mat1", "mat2")}


def at_positions(values: Tensor, chosen: Tensor) -> Tensor:
    """Return some positions of [samples, channels, positions]: of a matrix, that is 10 times as fast for torch."""
    return values.flatten(0, 1).index_select(1, chosen).view(*values.shape[:2], len(chosen))


@dataclass(frozen=True)
class FunctionCall:
    """One call of a torch function."""

    number: int  # among the calls of a forward pass that return a tensor
    name: str
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def input(self) -> Any:
        """The first argument."""
        return self.args[0] if self.args else self.kwargs["input"]

    def arguments(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the arguments by name, given the names of the positional ones."""
        return {**dict(zip(names, self.args, strict=False)), **self.kwargs}

    def run(self, **changed: Any) -> Any:
        """Return the result of the function, with another `input` or `weight` if one is given."""
        if not changed:
            return self.func(*self.args, **self.kwargs)
        args, kwargs = list(self.args), {**self.kwargs, **changed}
        for position, key in enumerate(("input", "weight")):
            if key in changed and position < len(args):
                args[position] = kwargs.pop(key)
        return self.func(*args, **kwargs)


@dataclass(frozen=True)
class Weight:
    """A parameter or buffer of the network, or a tensor that was moved or scaled from one."""

    tensor: Tensor  # kept alive, so that no other tensor takes its id
    name: str
    shape: tuple[int, ...]  # of the parameter itself
    moved: Tensor | None = None  # for a derived tensor, its `index`

    @cached_property
    def index(self) -> Tensor:
        """For each element its flat index in the parameter."""
        if self.moved is not None:
            return self.moved
        return torch.arange(self.tensor.numel(), device=self.tensor.device).view(self.shape)


@dataclass(frozen=True)
class LayerCall:
    """`conv(x, weight, stride=stride, dilation=dilation, groups=groups) + bias`, with the padding already in x.

    A linear layer or product is a convolution with a kernel of one over its positions. A transposed convolution has
    zeros inserted into x, and `by_group` and `as_matrix` turn its weight into that of an ordinary convolution.
    """

    input: Tensor  # as passed to the layer
    weight: Tensor  # as passed to the layer; of a product as a linear layer has it, [outputs, inputs]
    bias: Tensor | None = None
    source: Weight | None = None  # the parameter that the weight comes from, if known
    refittable: bool = False  # a layer, not a product; on a batch; its weight a parameter itself, if that is known
    linear: bool = True
    transposed: bool = False
    groups: int = 1
    stride: tuple[int, ...] = (1,)
    dilation: tuple[int, ...] = (1,)
    zeros: tuple[int, ...] = ()  # of a transposed convolution, its strides: x has zeros between the elements of input
    padding: tuple[int, ...] = ()  # as F.pad takes it

    @property
    def name(self) -> str:
        """The name of the parameter."""
        assert self.source is not None
        return self.source.name

    @cached_property
    def x(self) -> Tensor:
        """The input of the equivalent convolution without padding, [samples, channels, *space]."""
        if self.linear:
            return _positions_last(self.input)
        x = self.input
        if self.transposed:
            x = x.new_zeros(*x.shape[:2], *((n - 1) * step + 1 for n, step in zip(x.shape[2:], self.zeros)))
            x[(slice(None), slice(None), *(slice(None, None, step) for step in self.zeros))] = self.input
        return F.pad(x, self.padding) if any(self.padding) else x

    @property
    def kernel(self) -> tuple[int, ...]:
        """The size of the window along each axis of space."""
        return (1,) if self.linear else tuple(self.weight.shape[2:])

    @property
    def outputs(self) -> int:
        """The number of output channels."""
        return self.weight.shape[1] * self.groups if self.transposed else self.weight.shape[0]

    @property
    def positions(self) -> tuple[int, ...]:
        """The number of output positions along each axis of space."""
        space = self.x.shape[2:] if self._margins is None else tuple(n + a + b for n, a, b in self._margins)
        return count_positions(space, self.kernel, self.stride, self.dilation)

    @property
    def _margins(self) -> list[tuple[int, int, int]] | None:
        """Along each axis of space, the size of the input and the zeros before and behind it; None if x has others."""
        if self.linear or self.transposed or any(side < 0 for side in self.padding):
            return None
        sides = self.padding or (0,) * (2 * len(self.stride))
        return list(zip(self.input.shape[2:], reversed(sides[::2]), reversed(sides[1::2]), strict=True))

    def by_group(self, weight: Tensor) -> Tensor:
        """Return a weight of this layer's shape as [groups, outputs, channels, *kernel] of ordinary convolutions."""
        if self.linear:
            return weight[None, ..., None]
        parts = weight.unflatten(0, (self.groups, -1))
        return parts.transpose(1, 2).flip(tuple(range(3, parts.dim()))) if self.transposed else parts

    def as_matrix(self, weight: Tensor) -> Tensor:
        """Return a weight of this layer's shape as [groups, outputs, channels x kernel]."""
        return self.by_group(weight).flatten(2)

    def from_matrix(self, matrix: Tensor) -> Tensor:
        """Return a weight of this layer's shape: the inverse of `as_matrix`."""
        if not self.transposed:
            return matrix.flatten(0, 1).view(self.weight.shape)
        parts = matrix.unflatten(2, (-1, *self.kernel))
        return parts.flip(tuple(range(3, parts.dim()))).transpose(1, 2).flatten(0, 1)

    def by_position(self, output: Tensor) -> Tensor:
        """Return an output of the layer as [samples, outputs, positions]."""
        return _positions_last(output) if self.linear else output.flatten(2)

    def columns(self, chosen: Tensor | None = None) -> Tensor:
        """Return the input values of each output (im2col), [groups, samples, positions, channels x kernel].

        Args:
            chosen: the positions to return, as indices into the flattened space; all if not given.
        """
        x, margins = self.input, self._margins  # of the padding, only what is needed
        if margins is None:
            x, margins = self.x, [(n, 0, 0) for n in self.x.shape[2:]]
        starts = torch.zeros(1, 1, dtype=torch.int64)  # [positions, taps]
        inside = torch.ones(1, 1, dtype=torch.bool)
        axes = zip(margins, self.positions, self.kernel, self.stride, self.dilation, strict=True)
        for (size, before, _), count, kernel, stride, dilation in axes:
            at = (torch.arange(count) * stride - before)[:, None] + torch.arange(kernel) * dilation
            within = (at >= 0) & (at < size)
            at = at.clamp(0, size - 1)
            starts = (starts[:, None, :, None] * size + at[None, :, None, :]).flatten(2).flatten(0, 1)
            inside = (inside[:, None, :, None] & within[None, :, None, :]).flatten(2).flatten(0, 1)
        if chosen is not None:
            starts, inside = starts[chosen.cpu()], inside[chosen.cpu()]
        found = at_positions(x.flatten(2), starts.flatten().to(x.device))  # [samples, channels, positions x kernel]
        if not inside.all():
            found.index_fill_(2, (~inside).flatten().nonzero()[:, 0].to(x.device), 0)
        positions, taps = starts.shape
        found = found.view(len(found), self.groups, x.shape[1] // self.groups, positions, taps)
        return found.permute(1, 0, 3, 2, 4).flatten(3)

    def along(self, slots: Iterable[Slot]) -> Iterator[GroupCall]:
        """Return, for every slot that runs along the input channels of the weight, each group of the layer."""
        assert self.source is not None
        index, shape = self.source.index, self.source.shape
        index = index.reshape(*index.shape[:2], -1)[..., 0]
        elements = index[:, 0] if self.transposed else index[0]  # one for each input channel
        for slot in slots:
            channels = elements // math.prod(shape[slot.axis + 1 :]) % shape[slot.axis]
            if len(channels.unique()) == shape[slot.axis]:
                parts = channels.chunk(self.groups) if self.transposed else (channels,) * self.groups
                groups = zip(parts, self.x.chunk(self.groups, 1), self.by_group(self.weight), strict=True)
                for part, x, weight in groups:
                    yield GroupCall(slot, part, x, weight, self.stride, self.dilation)


@dataclass(frozen=True)
class GroupCall:
    """One group of a layer call: `conv(x, weight, stride=stride, dilation=dilation)`, without padding or bias."""

    slot: Slot
    channels: Tensor  # for each channel of x its index along the slot
    x: Tensor  # [samples, channels, *space]
    weight: Tensor  # [outputs, channels, *kernel]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def positions(self) -> tuple[int, ...]:
        """The number of output positions along each axis of space."""
        return count_positions(self.x.shape[2:], tuple(self.weight.shape[2:]), self.stride, self.dilation)

    def windows(self, x: Tensor) -> Tensor:
        """Return a view of the windows of an input [..., *space] of this layer, [..., *positions, *kernel]."""
        sizes = zip(self.weight.shape[2:], self.stride, self.dilation, strict=True)
        for axis, (k, s, d) in enumerate(sizes, x.dim() - len(self.stride)):
            x = x.unfold(axis, d * (k - 1) + 1, s)[..., ::d]
        return x


def layer_call(call: FunctionCall, weights: Mapping[int, Weight] | None = None) -> LayerCall | None:
    """Return the layer call behind a call of a torch function, None for a call of another kind.

    >>> layer_call(FunctionCall(0, "conv2d", F.conv2d, (x, weight, bias), {"padding": 1})).positions
    (32, 32)

    Args:
        weights: the tensors that count as weights, by id. If not given, those of all convolutions and linear layers do.
    """
    match = CONVOLUTION.match(call.name)
    if match is None and call.name != "linear":
        return _product(call, weights) if weights and call.name in PRODUCTS else None
    transposed, dims = (bool(match[1]), int(match[2])) if match else (False, 0)
    given = call.arguments(TRANSPOSED_ARGUMENTS if transposed else CONVOLUTION_ARGUMENTS)
    x, weight = given["input"], given["weight"]
    source = None if weights is None else weights.get(id(weight))
    if (weights is not None and source is None) or weight.dim() != dims + 2:
        return None
    batched = x.dim() >= dims + 2
    x, refittable = x if batched else x[None], batched and (source is None or source.moved is None)
    found = LayerCall(x, weight, given.get("bias"), source, refittable)
    if match is None:
        return found
    stride, dilation, output_padding = (
        per_axis(given.get(key, default), dims)
        for key, default in (("stride", 1), ("dilation", 1), ("output_padding", 0))
    )
    reach = [d * (k - 1) for k, d in zip(weight.shape[2:], dilation, strict=True)]
    padding = given.get("padding", 0)
    if padding == "same":
        sides = [(r // 2, r - r // 2) for r in reach]
    else:
        sides = [(p, p) for p in per_axis(0 if padding == "valid" else padding, dims)]
    if transposed:
        sides = [(r - p, r - p + more) for r, (p, _), more in zip(reach, sides, output_padding, strict=True)]
    return replace(
        found,
        linear=False,
        transposed=transposed,
        groups=given.get("groups", 1),
        stride=(1,) * dims if transposed else stride,
        dilation=dilation,
        zeros=stride,
        padding=tuple(side for pair in reversed(sides) for side in pair),
    )


def _product(call: FunctionCall, weights: Mapping[int, Weight]) -> LayerCall | None:
    """Return a product of a matrix of weights with something else, on either side, as a linear layer."""
    left, right = (call.arguments(PRODUCTS[call.name]).get(name) for name in PRODUCTS[call.name][-2:])
    if left is None or right is None:
        return None
    if id(right) in weights and right.dim() == 2:
        known = weights[id(right)]
        x, weight, index = left, right.T, known.index.T
    elif id(left) in weights and left.dim() == 2:
        known = weights[id(left)]
        x, weight, index = right.mT if right.dim() > 1 else right, left, known.index
    else:
        return None
    return LayerCall(x if x.dim() > 1 else x[None], weight, source=Weight(weight, known.name, known.shape, index))


def convolve(x: Tensor, weight: Tensor, stride: tuple[int, ...], dilation: tuple[int, ...] | int = 1) -> Tensor:
    """Return a convolution along as many axes of space as there are strides."""
    function: Callable[..., Tensor] = (F.conv1d, F.conv2d, F.conv3d)[len(stride) - 1]
    return function(x, weight, None, stride, 0, dilation)


def count_positions(
    space: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[int, ...]:
    """Return how many windows fit along each axis of space."""
    sizes = zip(space, kernel, stride, dilation, strict=True)
    return tuple((n - d * (k - 1) - 1) // s + 1 for n, k, s, d in sizes)


def per_axis(value: Any, count: int) -> tuple[int, ...]:
    """Return one number for each axis of space."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * count if len(values) == 1 else values


def _positions_last(x: Tensor) -> Tensor:
    """Return [samples, ..., channels] as [samples, channels, positions]."""
    return x.reshape(len(x), -1, x.shape[-1]).transpose(1, 2)
