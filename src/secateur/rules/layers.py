"""Layers that sum over channels: convolutions, linear maps, matrix products, embeddings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvNd

from secateur.labels import Follower, Value
from secateur.ops import CONVOLUTION, argument_names, op_name
from secateur.rules.simple import meet, unknown


def contract(f: Follower, x: Value, axis: int, w: Value, w_axis: int) -> None:
    """A sum over channels of activation times weight: the weight's slices are what a mask sets to zero."""
    if x.shape[axis] == 1:
        return
    labels, slices = x.fields[axis], w.fields[w_axis]
    if len(labels) > 1 or len(slices) > 1 or not (x.activation and not w.activation):
        why = "its channels are summed against another activation"
        for vector in (*labels, *slices):
            f.ties.keep(vector, f.reason(why if x.activation and w.activation else "it is part of a computed weight"))
    elif not slices:
        for vector in labels:
            f.ties.keep(vector, f.reason(f"the layer that reads it has {w.origin}; output='graph' can cut it"))
    elif not w.plain:
        text = "the layer that reads it computes its weight from all its inputs (a parametrization?)"
        f.ties.keep(torch.cat([*labels, *slices]), f.reason(text))
    else:
        f.ties.note(f.ties.inputs, slices[0])
        if labels:
            f.ties.tie(slices[0], labels[0], f.reason("the layer reads channels that stay"))
        else:
            f.ties.keep(slices[0], f.reason(f"it reads {x.origin or 'a fixed axis'}"))


def produce(f: Follower, w: Value, axis: int) -> tuple[Tensor, ...]:
    """The channels that a layer makes carry the labels of its weight's output axis."""
    vectors = w.fields[axis]
    for vector in vectors:
        f.ties.note(f.ties.outputs, vector)
    return vectors


def carry(f: Follower, channels: tuple[Tensor, ...], params: list[Any], origin: str) -> tuple[Tensor, ...]:
    """Per-channel parameters (bias, norm weights, statistics) go with their channel."""
    for param in params:
        if not isinstance(param, Value) or not param.fields or param.shape[0] == 1:
            continue
        vector = param.along(0)
        if vector is None:
            for label in channels:
                f.ties.keep(label, f.reason(f"it meets {param.origin}, whose size is fixed"))
            continue
        f.ties.note(f.ties.carriers, vector)
        if len(channels) == 1:
            f.ties.tie(channels[0], vector, f.reason(f"it meets channels of {origin} that stay"))
        else:
            for label in (*channels, vector):
                f.ties.keep(label, f.reason(f"it meets {origin or 'an axis'}, whose size is fixed"))
    return channels


def convolution(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    """Convolutions of any dimension, transposed and grouped."""
    match = CONVOLUTION.match(op_name(f.node))
    assert match is not None
    x, w, bias = args[0], args[1], args[2] if len(args) > 2 else kwargs.get("bias")
    transposed, count = bool(match[1]), int(match[2])
    names = argument_names(f.node)
    groups = {**dict(zip(names, args, strict=False)), **kwargs}.get("groups", 1)
    channel = len(x.shape) - count - 1
    x = f.mix(x, list(range(channel + 1, len(x.shape))), "its axis is treated as space by a convolution")
    reads, makes = (0, 1) if transposed else (1, 0)
    if groups == 1:
        contract(f, x, channel, w, reads)
        made = produce(f, w, makes)
    elif w.activation or len(x.fields[channel]) > 1 or len(w.fields[0]) > 1 or len(w.fields[1]) > 1:
        f.ties.keep(torch.cat([x.all_labels(), w.all_labels()]), f.reason("the weight of a grouped layer is computed"))
        made = ()
    elif x.fields[channel] and groups >= x.shape[channel] // groups and can_regroup(f, _ConvNd):
        made = _whole_groups(f, x.fields[channel][0], w, groups, transposed)
    else:
        made = _same_in_every_group(f, x, channel, w, groups, transposed)
    shape = f.shape()
    made = carry(f, made, [bias], f.layer())
    fields = (*x.fields[:channel], made, *((),) * count)
    origin = x.origin if not made else f.layer()
    return Value(shape, fields, x.activation or w.activation, origin=origin)


def can_regroup(f: Follower, kind: type) -> bool:
    """The number of groups can change: it is an attribute of a known layer, or a literal that is rewritten."""
    return not f.literal or isinstance(f.module(), kind)


def _whole_groups(f: Follower, channels: Tensor, w: Value, groups: int, transposed: bool) -> tuple[Tensor, ...]:
    """Many narrow groups (depthwise is the extreme): a group goes as a whole, and `groups` shrinks."""
    reason = f.reason("its group holds channels that stay")
    first = w.fields[0][0]  # output channels; of a transposed layer the input channels
    f.ties.note(f.ties.outputs, first)
    rows = torch.cat([channels.view(groups, -1), first.view(groups, -1)], 1)
    f.ties.tie_rows(rows, reason)
    if not transposed:
        return (first,)
    return (first.view(groups, -1)[:, :1].expand(groups, w.shape[1]).reshape(-1),)


def _same_in_every_group(
    f: Follower, x: Value, channel: int, w: Value, groups: int, transposed: bool
) -> tuple[Tensor, ...]:
    """Few wide groups: each keeps the same pattern of input and of output channels."""
    reason = f.reason("its place in another group of the layer stays")
    inputs = x.fields[channel]
    for vector in inputs:
        f.ties.tie_rows(vector.view(groups, -1).T, reason)
    if transposed:
        contract(f, x, channel, w, 0)
        for vector in w.fields[0]:
            f.ties.tie_rows(vector.view(groups, -1).T, reason)
        return tuple(vector.repeat(groups) for vector in produce(f, w, 1))
    narrow_x = replace(
        x,
        shape=(*x.shape[:channel], w.shape[1], *x.shape[channel + 1 :]),
        fields=(*x.fields[:channel], tuple(v.view(groups, -1)[0] for v in inputs), *x.fields[channel + 1 :]),
    )
    contract(f, narrow_x, channel, w, 1)
    made = produce(f, w, 0)
    for vector in made:
        f.ties.tie_rows(vector.view(groups, -1).T, reason)
    return made


def linear(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    x, w, bias = args[0], args[1], args[2] if len(args) > 2 else kwargs.get("bias")
    last = len(x.shape) - 1
    contract(f, x, last, w, len(w.shape) - 1)
    made = produce(f, w, 0) if len(w.shape) == 2 else ()
    made = carry(f, made, [bias], f.layer())
    fields = (*x.fields[:-1], made) if len(w.shape) == 2 else x.fields[:-1]
    return Value(f.shape(), fields, x.activation or w.activation, origin=f.layer())


def matmul(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    """A product in which either side may be the weight."""
    a, b = args[0], args[1]
    if len(a.shape) < 2 or len(b.shape) < 2:
        return unknown(f, args, kwargs)
    rows, inner_a, inner_b, columns = len(a.shape) - 2, len(a.shape) - 1, len(b.shape) - 2, len(b.shape) - 1
    if a.activation:
        contract(f, a, inner_a, b, inner_b)
    else:
        contract(f, b, inner_b, a, inner_a)
    for weight, axis in ((a, rows), (b, columns)):
        if weight.plain:
            produce(f, weight, axis)
    shape = f.shape()
    batch = meet(f, [_batch_part(a), _batch_part(b)], shape[:-2])
    fields = (*batch.fields, a.fields[rows], b.fields[columns])
    return Value(shape, fields, a.activation or b.activation, origin=f.layer())


def _batch_part(value: Value) -> Value:
    return replace(value, shape=value.shape[:-2], fields=value.fields[:-2])


def addmm(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    product = matmul(f, args[1:], {})
    return meet(f, [product, args[0]], product.shape)


def embedding(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    weight, shape = args[0], f.shape()
    return Value(shape, (*((),) * (len(shape) - 1), produce(f, weight, 1)), True, origin=f.layer())
