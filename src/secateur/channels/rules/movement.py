"""Rules of ops that move channels without changing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import fx

from secateur._torch import overload_of
from secateur.channels.labels import Propagation, Value, concrete
from secateur.channels.rules.simple import broadcast, tie_axes, unknown
from secateur.channels.ties import FIXED
from secateur.network.operations import op_name

SAME_AS: dict[str, Any] = {  # expanded labels have no memory layout that `view` would accept
    "view": torch.reshape,
    "unsafe_view": torch.reshape,
    "view_as": torch.reshape,
    "reshape_as": torch.reshape,
    "expand_as": torch.Tensor.expand,
}


def movement(p: Propagation, value: Value, *args: Any, **kwargs: Any) -> Any:
    """Move the labels as the op moves the data."""
    name = op_name(p.node)
    rest = [arg.shape if isinstance(arg, Value) else arg for arg in args]
    op = SAME_AS.get(name)
    if op is None:
        functional = getattr(torch.ops.aten, name, None) or getattr(torch.ops.aten, "_" + name)
        op = overload_of(functional, p.node.target)
    out = p.move(value, lambda labels: op(labels, *rest, **kwargs))
    p.ties.hard_coded.append(value.all_labels())
    if isinstance(p.node.meta["val"], tuple | list):
        return out
    if name in ("view", "unsafe_view", "reshape", "expand"):
        for size, vectors in zip(p.node.args[1], out[0].labels, strict=True):  # type: ignore[arg-type]
            if isinstance(size, fx.Node):
                p.keep("its axis is merged with one of dynamic size", vectors)
    return out[0]


def channel_shuffle(p: Propagation, value: Value, groups: int) -> Any:
    """Groups are interleaved: the same channels are kept in each."""
    for vector in value.labels[1]:
        p.ties.tie_rows(vector.view(groups, -1).T, p.reason("its counterpart in another group of the shuffle is kept"))
    return movement(p, value, groups)


def pixel_shuffle(p: Propagation, value: Value, factor: int) -> Value:
    """Blocks of channels become the pixels of one channel: a block is removed as a whole."""
    axis = len(value.shape) - 3
    value = p.mix(value, [axis + 1, axis + 2], "its axis is treated as a spatial axis")
    left = []
    for vector in value.labels[axis]:
        blocks = vector.view(-1, factor**2)
        p.ties.tie_rows(blocks, p.reason("its block of a pixel shuffle contains channels that are kept"))
        if len(blocks) == 1:
            p.keep("all its channels become the pixels of one channel", [vector])
        else:
            left.append(blocks[:, 0])
    return value.relabelled(axis, left, p.shape())


def roll(p: Propagation, value: Value, shifts: Any, dims: Sequence[int] = ()) -> Value:
    """A shift by a fixed number of positions: channels along its axis are kept."""
    axes = [axis % len(value.shape) for axis in dims] or range(len(value.shape))
    return p.mix(value, axes, "its axis is rolled by a fixed number of positions")


def pad(p: Propagation, value: Value, widths: Sequence[int], mode: Any = "constant", *_: Any) -> Value:
    """Channels that a pad adds get new labels; their number is hard-coded."""
    last = len(value.shape) - 1
    sides = [tuple(widths[2 * (last - axis) :][:2]) or (0, 0) for axis in range(last + 1)]
    mode = mode if isinstance(mode, str) else "constant"  # constant_pad_nd has a number here
    if mode != "constant" or any(width < 0 for width in widths):
        padded = [axis for axis, side in enumerate(sides) if any(side)]
        value = p.mix(value, padded, f"its axis is padded by mode {mode}")
    for axis, (before, after) in enumerate(sides):
        grown = []
        for vector in value.labels[axis]:
            front, back = p.ties.new_labels(before), p.ties.new_labels(after)
            if p.hard_coded:
                p.keep("it is combined with channels of a pad whose width is hard-coded", [front, back])
            grown.append(torch.cat([front, vector, back]))
        value = value.relabelled(axis, grown)
    return replace(value, shape=p.shape(), plain=False)


def cat(p: Propagation, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Join the labels along one axis; along the others the channels of the parts are tied."""
    values = [value for value in tensors if prod(value.shape) or len(value.shape) > 1]
    if any(len(vectors) > 1 for value in values for vectors in value.labels):
        return unknown(p, tensors)
    shape = p.shape()
    dim %= len(shape)
    labels = []
    for axis in range(len(shape)):
        if axis != dim:
            labels.append(tie_axes(p, [(value, axis) for value in values]))
        elif any(value.labels[dim] for value in values):
            parts = [v.labels[dim][0] if v.labels[dim] else torch.full((v.shape[dim],), FIXED) for v in values]
            labels.append((torch.cat(parts),))
        else:
            labels.append(())
    activation, plain = any(value.activation for value in values), all(value.plain for value in values)
    return Value(shape, tuple(labels), activation, plain, values[0].origin)


def stack(p: Propagation, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Stacked tensors are tied channel by channel."""
    shape = p.shape()
    dim %= len(shape)
    tied = broadcast(p, list(tensors), shape[:dim] + shape[dim + 1 :])
    return replace(tied, shape=shape, labels=(*tied.labels[:dim], (), *tied.labels[dim:]))


def split(p: Propagation, value: Value, sizes: Any, dim: int = 0) -> list[Value]:
    """Parts of an axis: free in a rewritten graph; in the user's own class equal parts keep the same channels."""
    dim %= len(value.shape)
    widths = [concrete(part.shape)[dim] for part in p.node.meta["val"]]
    pieces = [torch.split(vector, widths) for vector in value.labels[dim]]
    for vector, parts in zip(value.labels[dim], pieces, strict=True):
        p.ties.pieces.extend(parts)
        p.ties.hard_coded.append(vector)
        if p.hard_coded and len(set(widths)) > 1:
            p.keep("it is split at hard-coded positions in forward", [vector])
        elif p.hard_coded:
            p.ties.tie_rows(torch.stack(parts, 1), p.reason("its counterpart in another part of a split is kept"))
    return [
        value.relabelled(dim, [parts[i] for parts in pieces], (*value.shape[:dim], width, *value.shape[dim + 1 :]))
        for i, width in enumerate(widths)
    ]


def slice_(
    p: Propagation, value: Value, dim: int = 0, start: int | None = None, stop: int | None = None, step: int = 1
) -> Value:
    """A range of an axis. In the user's own class its bounds are hard-coded: the channels that they count are kept."""
    dim %= len(value.shape)
    size = value.shape[dim]
    chosen = range(size)[slice(start, stop, step)]
    for vector in value.labels[dim] if len(chosen) < size else ():
        p.ties.hard_coded.append(vector)
        if step != 1:
            p.keep("every n-th channel is taken", [vector])
        elif p.hard_coded:
            counted = torch.zeros(size, dtype=torch.bool)
            for bound in (start or 0, size if stop is None else stop):
                if -size < bound < 0:
                    counted[bound:] = True
                elif 0 < bound < size:
                    counted[:bound] = True
            p.keep("it is sliced at a hard-coded position in forward", [vector[counted]])
        else:
            p.ties.pieces += [vector[: chosen.start], vector[chosen.start : chosen.stop], vector[chosen.stop :]]
    shape = (*value.shape[:dim], len(chosen), *value.shape[dim + 1 :])
    return value.relabelled(dim, [vector[list(chosen)] for vector in value.labels[dim]], shape)


def index(p: Propagation, value: Value, indices: Sequence[Any]) -> Any:
    """Elements selected along one axis by a tensor of indices, as in a table; channels along other axes pass."""
    given = [axis for axis, one in enumerate(indices) if one is not None]
    if len(given) != 1 or not isinstance(indices[given[0]], Value) or indices[given[0]].activation:
        return unknown(p, value, indices)
    (axis,) = given
    rank = len(p.shape()) - len(value.shape) + 1
    if len(indices[axis].shape) != rank:  # a mask over several axes
        return unknown(p, value, indices)
    mixed = p.mix(value, [axis], "its elements are selected by indices")
    labels = (*mixed.labels[:axis], *((),) * rank, *mixed.labels[axis + 1 :])
    return replace(mixed, shape=p.shape(), labels=labels, plain=value.plain)


def index_select(p: Propagation, value: Value, dim: int, indices: Value) -> Any:
    return index(p, value, [*[None] * (dim % len(value.shape)), indices])


def narrow(p: Propagation, value: Value, dim: int, start: int, length: int) -> Value:
    return slice_(p, value, dim, start, start + length)


def glu(p: Propagation, value: Value, dim: int = -1) -> Value:
    """The two halves of the axis are multiplied: they are tied."""
    dim %= len(value.shape)
    halves = [vector.chunk(2) for vector in value.labels[dim]]
    for first, second in halves:
        p.ties.tie(first, second, p.reason("its counterpart in the other half of a GLU is kept"))
    return replace(value.relabelled(dim, [first for first, _ in halves], p.shape()), plain=False)
