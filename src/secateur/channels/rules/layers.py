"""Rules of layers that sum over channels: convolutions, linear maps, matrix products, embeddings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from secateur._torch import Convolution
from secateur.channels.labels import Propagation, Value, arguments
from secateur.channels.rules.simple import broadcast, unknown
from secateur.network.operations import CONVOLUTION, op_name


def consume(p: Propagation, x: Value, axis: int, weight: Value, weight_axis: int) -> None:
    """Tie the channels that a layer sums over to the slices of its weight, which a mask sets to zero."""
    if x.shape[axis] == 1:
        return
    channels, slices = x.labels[axis], weight.labels[weight_axis]
    if x.activation and weight.activation:
        p.keep("its channels are summed against another activation", (*channels, *slices))
    elif not x.activation or len(channels) > 1 or len(slices) > 1:
        p.keep("it is part of a computed weight", (*channels, *slices))
    elif not slices:
        p.keep(f"its consumer has {weight.origin}; output='graph' can cut it", channels)
    elif not weight.plain:
        why = "its consumer computes a weight from all its input channels (a parametrization?)"
        p.keep(why, (*channels, *slices))
    else:
        p.ties.note(p.ties.inputs, slices[0])
        if channels:
            p.ties.tie(slices[0], channels[0], p.reason("it consumes channels that are kept"))
        else:
            p.keep(f"it consumes {x.origin or 'a fixed axis'}", slices)


def produce(p: Propagation, weight: Value, axis: int) -> tuple[Tensor, ...]:
    """Return the labels of the channels that a layer produces: those of its weight's output axis."""
    for vector in weight.labels[axis]:
        p.ties.note(p.ties.outputs, vector)
    return weight.labels[axis]


def tie_per_channel(p: Propagation, channels: tuple[Tensor, ...], params: Iterable[Any], origin: str) -> None:
    """Tie per-channel parameters (bias, norm weights, statistics) to their channels."""
    for param in params:
        if not isinstance(param, Value) or not param.labels or param.shape[0] == 1:
            continue
        if len(param.labels[0]) != 1:
            p.keep(f"it is combined with {param.origin}, whose size is fixed", channels)
            continue
        (vector,) = param.labels[0]
        p.ties.note(p.ties.per_channel, vector)
        if len(channels) == 1:
            kept = f"it is combined with channels of {origin} that are kept"
            p.ties.tie(channels[0], vector, p.reason(kept))
        else:
            p.keep(f"it is combined with {origin or 'an axis'}, whose size is fixed", (*channels, vector))


def convolution(p: Propagation, x: Value, w: Value, bias: Value | None = None, *_: Any, **__: Any) -> Value:
    """Convolutions of any dimension, transposed and grouped."""
    match = CONVOLUTION.match(op_name(p.node))
    assert match is not None
    transposed, count = bool(match[1]), int(match[2])
    groups = arguments(p.node).get("groups", 1)
    axis = len(x.shape) - count - 1
    x = p.mix(x, range(axis + 1, len(x.shape)), "its axis is treated as a spatial axis by a convolution")
    channels: tuple[Tensor, ...] = ()
    if groups == 1:
        consume(p, x, axis, w, 0 if transposed else 1)
        channels = produce(p, w, 1 if transposed else 0)
    elif not w.activation and w.shape[0] > 1 and not w.labels[0]:
        p.keep(f"its consumer has {w.origin}; output='graph' can cut it", x.labels[axis])
    elif w.activation or any(len(vectors) > 1 for vectors in (x.labels[axis], *w.labels[:2])):
        p.keep("the weight of a grouped layer is computed", [x.all_labels(), w.all_labels()])
    elif x.labels[axis] and groups >= x.shape[axis] // groups and can_regroup(p, Convolution):
        channels = _whole_groups(p, x.labels[axis][0], w, groups, transposed)
    else:
        channels = _same_in_every_group(p, x, axis, w, groups, transposed)
    tie_per_channel(p, channels, [bias], p.layer())
    labels = (*x.labels[:axis], channels, *((),) * count)
    return Value(p.shape(), labels, x.activation or w.activation, origin=p.layer() if channels else x.origin)


def can_regroup(p: Propagation, kind: type) -> bool:
    """Return whether the number of groups can change: it is rewritten, or an attribute of a known layer."""
    return not p.hard_coded or isinstance(p.module(), kind)


def _whole_groups(p: Propagation, channels: Tensor, w: Value, groups: int, transposed: bool) -> tuple[Tensor, ...]:
    """Many narrow groups (depthwise is the extreme): a group is removed as a whole, and `groups` shrinks."""
    first = w.labels[0][0]  # output channels; of a transposed layer the input channels
    p.ties.note(p.ties.outputs, first)
    rows = torch.cat([channels.view(groups, -1), first.view(groups, -1)], 1)
    p.ties.tie_rows(rows, p.reason("its group contains channels that are kept"))
    if not transposed:
        return (first,)
    return (first.view(groups, -1)[:, :1].expand(groups, w.shape[1]).reshape(-1),)


def _same_in_every_group(
    p: Propagation, x: Value, axis: int, w: Value, groups: int, transposed: bool
) -> tuple[Tensor, ...]:
    """Few wide groups: the same input and output channels are kept in each."""

    def tie_groups(vectors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        for vector in vectors:
            p.ties.tie_rows(vector.view(groups, -1).T, p.reason("its counterpart in another group is kept"))
        return vectors

    tie_groups(x.labels[axis])
    if transposed:
        consume(p, x, axis, w, 0)
        tie_groups(w.labels[0])
        return tuple(vector.repeat(groups) for vector in produce(p, w, 1))
    one_group = [vector.view(groups, -1)[0] for vector in x.labels[axis]]
    shape = (*x.shape[:axis], w.shape[1], *x.shape[axis + 1 :])
    consume(p, x.relabelled(axis, one_group, shape), axis, w, 1)
    return tie_groups(produce(p, w, 0))


def linear(p: Propagation, x: Value, w: Value, bias: Value | None = None) -> Value:
    consume(p, x, len(x.shape) - 1, w, len(w.shape) - 1)
    channels = produce(p, w, 0) if len(w.shape) == 2 else ()
    tie_per_channel(p, channels, [bias], p.layer())
    labels = (*x.labels[:-1], channels) if len(w.shape) == 2 else x.labels[:-1]
    return Value(p.shape(), labels, x.activation or w.activation, origin=p.layer())


def matmul(p: Propagation, a: Value, b: Value, *_: Any) -> Value:
    """A product in which either side can be the weight."""
    rows, inner_a, inner_b, columns = len(a.shape) - 2, len(a.shape) - 1, len(b.shape) - 2, len(b.shape) - 1
    if rows < 0 or inner_b < 0:
        return unknown(p, a, b)
    if a.activation:
        consume(p, a, inner_a, b, inner_b)
    else:
        consume(p, b, inner_b, a, inner_a)
    for weight, axis in ((a, rows), (b, columns)):
        if weight.plain:
            produce(p, weight, axis)
    shape = p.shape()
    batch = broadcast(p, [replace(v, shape=v.shape[:-2], labels=v.labels[:-2]) for v in (a, b)], shape[:-2])
    labels = (*batch.labels, a.labels[rows], b.labels[columns])
    return Value(shape, labels, a.activation or b.activation, origin=p.layer())


def attention(p: Propagation, query: Value, key: Value, value: Value, mask: Any = None, *_: Any, **__: Any) -> Value:
    """Heads pass, each by itself; along the other axes channels are compared or summed."""
    shape = p.shape()
    heads = []
    for operand in filter(lambda one: isinstance(one, Value) and len(one.shape) > 1, (query, key, value, mask)):
        last = len(operand.shape) - 1
        mixed = p.mix(operand, [last - 1, last], "its channels are compared by attention")
        heads.append(_repeated(replace(mixed, shape=mixed.shape[:-2], labels=mixed.labels[:-2]), shape[:-2]))
    batch = broadcast(p, heads, shape[:-2])
    return Value(shape, (*batch.labels, (), ()), activation=True, origin=p.layer())


def _repeated(heads: Value, shape: tuple[int, ...]) -> Value:
    """Return keys or values with as many heads as there are queries: each serves a group of these (enable_gqa)."""
    few, many = heads.shape[-1:], shape[-1:]
    if few == many or few in ((), (1,)):
        return heads
    axis, times = len(heads.shape) - 1, many[0] // few[0]
    labels = [vector.repeat_interleave(times) for vector in heads.labels[axis]]
    return heads.relabelled(axis, labels, (*heads.shape[:-1], *many))


def addmm(p: Propagation, bias: Value, a: Value, b: Value, *_: Any, **__: Any) -> Value:
    product = matmul(p, a, b)
    return broadcast(p, [product, bias], product.shape)


def embedding(p: Propagation, weight: Value, indices: Value, *_: Any) -> Value:
    shape = p.shape()
    return Value(shape, (*((),) * (len(shape) - 1), produce(p, weight, 1)), activation=True, origin=p.layer())
