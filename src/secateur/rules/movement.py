"""Ops that move channels about without changing them."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor, fx

from secateur.labels import Follower, Value, concrete
from secateur.ops import op_name
from secateur.rules.simple import meet, meet_axis, unknown
from secateur.ties import FIXED

SAME_AS: dict[str, Any] = {  # spread labels have no memory layout that `view` would accept
    "view": torch.reshape,
    "unsafe_view": torch.reshape,
    "view_as": torch.reshape,
    "reshape_as": torch.reshape,
    "expand_as": torch.Tensor.expand,
}


def movement(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Data is moved, not changed: do the same to the labels."""
    name, (value, *rest) = op_name(f.node), args
    rest = [v.shape if isinstance(v, Value) else v for v in rest]
    op = SAME_AS.get(name)
    if op is None:
        functional = getattr(torch.ops.aten, name, None) or getattr(torch.ops.aten, "_" + name)
        op = getattr(functional, f.node.target._overloadname)  # type: ignore[union-attr]
    out = f.move(value, lambda labels: op(labels, *rest, **kwargs))
    f.ties.literals.append(value.all_labels())
    if isinstance(f.node.meta["val"], tuple | list):
        return out
    if name in ("view", "unsafe_view", "reshape", "expand"):
        for size, vectors in zip(f.node.args[1], out[0].fields, strict=True):  # type: ignore[arg-type]
            for vector in vectors if isinstance(size, fx.Node) else ():
                f.ties.keep(vector, f.reason("its axis is merged with one of free size"))
    return out[0]


def channel_shuffle(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Groups are interleaved: each keeps the same pattern."""
    value, groups = args
    for vector in value.fields[1]:
        f.ties.tie_rows(vector.view(groups, -1).T, f.reason("its place in another group of the shuffle stays"))
    return movement(f, args, kwargs)


def pixel_shuffle(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    """Blocks of channels become pixels of one: a block goes as a whole."""
    value, factor = args
    axis = len(value.shape) - 3
    value = f.mix(value, [axis + 1, axis + 2], "its axis is treated as space")
    fields = list(value.fields)
    fields[axis] = ()
    for vector in value.fields[axis]:
        blocks = vector.view(-1, factor**2)
        f.ties.tie_rows(blocks, f.reason("its block of a pixel shuffle holds channels that stay"))
        if len(blocks) == 1:
            f.ties.keep(vector, f.reason("all its channels become pixels of one"))
        else:
            fields[axis] = (*fields[axis], blocks[:, 0])
    return replace(value, shape=f.shape(), fields=tuple(fields), plain=False)


def roll(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A shift by a fixed number of places: channels along its axis stay."""
    value, _, dims = (*args, ())[:3]
    axes = [axis % len(value.shape) for axis in dims] or list(range(len(value.shape)))
    return replace(f.mix(value, axes, "its axis is rolled by a fixed number"), plain=False)


def pad(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    """Channels that a pad adds are new labels; the width of the pad is a literal."""
    value, *rest = args
    widths = list(rest[0])
    padded = {len(value.shape) - 1 - i // 2 for i, width in enumerate(widths) if width}
    mode = (rest[1] if len(rest) > 1 and isinstance(rest[1], str) else kwargs.get("mode", "constant")) or "constant"
    touched = [axis for axis in padded if value.fields[axis]]
    if mode != "constant" or any(width < 0 for width in widths):
        value = f.mix(value, touched, f"its axis is padded by mode {mode}")
    fields: list[tuple[Tensor, ...]] = []
    for axis, vectors in enumerate(value.fields):
        position = 2 * (len(value.shape) - 1 - axis)
        before, after = widths[position : position + 2] or (0, 0)
        grown = []
        for vector in vectors:
            front, back = f.ties.fresh(before), f.ties.fresh(after)
            if f.literal:
                f.ties.keep(
                    torch.cat([front, back]), f.reason("it meets channels of a pad whose width is written down")
                )
            grown.append(torch.cat([front, vector, back]))
        fields.append(tuple(grown))
    return replace(value, shape=f.shape(), fields=tuple(fields), plain=False)


def cat(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    """Concatenation: label vectors are joined; along the other axes the parts go together."""
    values = [v for v in args[0] if prod(v.shape) or len(v.shape) > 1]
    shape = f.shape()
    dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % len(shape)
    if any(len(vectors) > 1 for v in values for vectors in v.fields):
        return unknown(f, args, kwargs)
    fields = []
    for axis in range(len(shape)):
        if axis != dim:
            fields.append(meet_axis(f, [(v, axis) for v in values]))
        elif any(v.fields[axis] for v in values):
            parts = [v.fields[axis][0] if v.fields[axis] else torch.full((v.shape[axis],), FIXED) for v in values]
            fields.append((torch.cat(parts),))
        else:
            fields.append(())
    return Value(
        shape, tuple(fields), any(v.activation for v in values), all(v.plain for v in values), values[0].origin
    )


def stack(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    """Stacked tensors go together, channel by channel."""
    shape = f.shape()
    dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % len(shape)
    met = meet(f, args[0], shape[:dim] + shape[dim + 1 :])
    return replace(met, shape=shape, fields=(*met.fields[:dim], (), *met.fields[dim:]))


def split(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Value]:
    """Parts of an axis: free in a rewritten graph; in the user's own class equal parts keep the same pattern."""
    value = args[0]
    dim = (args[2] if len(args) > 2 else kwargs.get("dim", 0)) % len(value.shape)
    widths = [concrete(part.shape)[dim] for part in f.node.meta["val"]]
    parts: list[list[tuple[Tensor, ...]]] = [list(value.fields) for _ in widths]
    for i in range(len(widths)):
        parts[i][dim] = ()
    for vector in value.fields[dim]:
        pieces = list(torch.split(vector, widths))
        f.ties.pieces.extend(pieces)
        f.ties.literals.append(vector)
        if f.literal and len(widths) > 1:
            if len(set(widths)) == 1:
                f.ties.tie_rows(torch.stack(pieces, 1), f.reason("it meets a fixed part of a split"))
            else:
                f.ties.keep(vector, f.reason("it is split at places written down in forward"))
        for i, piece in enumerate(pieces):
            parts[i][dim] = (*parts[i][dim], piece)
    shapes = [(*value.shape[:dim], width, *value.shape[dim + 1 :]) for width in widths]
    return [replace(value, shape=s, fields=tuple(p)) for s, p in zip(shapes, parts, strict=True)]


def slice_(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    """A range of an axis. Its bounds are literals: what they count must not change in the user's own class."""
    value: Value = args[0]
    dim, start, stop, step = (list[Any](args[1:]) + [0, None, None, 1][len(args) - 1 :])[:4]
    dim, size = dim % len(value.shape), value.shape[dim]
    chosen = range(size)[slice(start, stop, step)]
    fields = list(value.fields)
    for vector in value.fields[dim]:
        if len(chosen) == size:
            break
        f.ties.literals.append(vector)
        if step != 1:
            f.ties.keep(vector, f.reason("every n-th channel is taken"))
        elif f.literal:
            counted = torch.zeros(size, dtype=torch.bool)
            for bound in (start or 0, size if stop is None else stop):
                if -size < bound < 0:
                    counted[bound:] = True
                elif 0 < bound < size:
                    counted[:bound] = True
            f.ties.keep(vector[counted], f.reason("it is sliced at a place written down in forward"))
        else:
            for piece in (vector[: chosen.start], vector[chosen.start : chosen.stop], vector[chosen.stop :]):
                f.ties.pieces.append(piece)
    fields[dim] = tuple(vector[list(chosen)] for vector in fields[dim])
    shape = (*value.shape[:dim], len(chosen), *value.shape[dim + 1 :])
    return replace(value, shape=shape, fields=tuple(fields))


def narrow(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    value, dim, start, length = args
    return slice_(f, (value, dim, start, start + length), {})


def glu(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    """The two halves of the axis are multiplied: they go together."""
    value, dim = args[0], (args[1] if len(args) > 1 else kwargs.get("dim", -1))
    dim %= len(value.shape)
    fields = list(value.fields)
    for vector in fields[dim]:
        first, second = vector.chunk(2)
        f.ties.tie(first, second, f.reason("it meets a fixed half of a GLU"))
    fields[dim] = tuple(vector.chunk(2)[0] for vector in fields[dim])
    return replace(value, shape=f.shape(), fields=tuple(fields), plain=False)
