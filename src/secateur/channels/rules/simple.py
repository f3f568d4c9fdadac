"""Rules of ops that keep the shape or mix whole axes: pointwise, reductions, pooling, attention, and unknown ops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from secateur._torch import pytree
from secateur.channels.labels import Propagation, Value, arguments
from secateur.channels.ties import FIXED
from secateur.network.operations import SCALING, SPATIAL, op_name


def opaque(p: Propagation, inputs: Any, why: str) -> Any:
    """Keep all channels that enter an op; its result has no labels."""
    values = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Value)]
    p.keep(why, [value.all_labels() for value in values])
    return p.unlabelled(f"the result of {p.op()}", activation=any(value.activation for value in values))


def unknown(p: Propagation, *args: Any, **kwargs: Any) -> Any:
    values = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Value)]
    if p.hard_coded and not any(value.activation for value in values):
        return opaque(
            p, values, "its weight is computed by an op that secateur has no rule for; output='graph' can cut it"
        )
    return opaque(p, values, "its channels enter an op that secateur has no rule for")


def of_unknown_size(p: Propagation, *args: Any, **kwargs: Any) -> Any:
    return opaque(p, (args, kwargs), "its channels enter an op with sizes that depend on values")


def sizes(p: Propagation, *args: Any, **kwargs: Any) -> Any:
    """An op that depends on sizes only."""
    return p.unlabelled(f"a constant made by {p.op()}", activation=False)


def getitem(p: Propagation, values: Any, index: Any) -> Any:
    return values[index]


def pointwise(p: Propagation, *args: Any, **kwargs: Any) -> Any:
    """Element by element: the channels of the operands are tied, a channel opposite a fixed axis is kept."""
    values = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Value)]
    plain = op_name(p.node) in SCALING and all(value.plain for value in values)
    return for_each_result(p, replace(broadcast(p, values, p.shape()), plain=plain))


def for_each_result(p: Propagation, value: Value) -> Any:
    """Return the same value for each result of an op that has several (a maximum and its index)."""
    results = p.node.meta["val"]
    return (value,) * len(results) if isinstance(results, tuple | list) else value


def broadcast(p: Propagation, values: list[Value], shape: tuple[int, ...]) -> Value:
    """Tie the channels of tensors that are broadcast to a common shape."""
    labels: list[tuple[Tensor, ...]] = []
    for axis in range(len(shape)):
        aligned = [(value, axis - len(shape) + len(value.shape)) for value in values]
        labels.append(tie_axes(p, [(value, a) for value, a in aligned if a >= 0 and value.shape[a] == shape[axis]]))
    fixed = (value.origin for value in values if value.activation and not value.all_labels().numel())
    origin = next(fixed, "") or (values[0].origin if values else "")
    return Value(shape, tuple(labels), any(value.activation for value in values), origin=origin)


def tie_axes(p: Propagation, axes: list[tuple[Value, int]]) -> tuple[Tensor, ...]:
    """Tie the channels along axes of equal length, index by index, and return the labels of the common axis."""
    labelled = [(value, value.labels[axis]) for value, axis in axes if value.labels[axis]]
    if not labelled:
        return ()
    if len(axes) == 1:
        return labelled[0][1]
    if any(len(vectors) > 1 for _, vectors in labelled):
        p.keep("two labelled axes were merged into one", [vector for _, vectors in labelled for vector in vectors])
        return ()
    result = labelled[0][1][0]
    for value, (vector,) in labelled[1:]:
        kept = f"it is combined with elements of {value.origin or 'another tensor'} that are kept"
        p.ties.tie(result, vector, p.reason(kept))
        result = torch.where(result == FIXED, vector, result)
    for value, axis in axes:
        if not value.labels[axis] and value.shape[axis] > 1:
            p.keep(f"it is combined with {value.origin or 'an axis'}, whose size is fixed", [result])
    return (result,)


def reduction(p: Propagation, value: Value, *_: Any, **__: Any) -> Any:
    """A sum, mean or maximum over axes: channels along these axes are kept."""
    given, count = arguments(p.node), len(value.shape)
    dims = given.get("dim")
    dims = range(count) if dims in (None, []) else [dims] if isinstance(dims, int) else dims
    axes = {axis % count for axis in dims}
    mixed = p.mix(value, sorted(axes), "it is reduced together with the other channels of its axis")
    labels = tuple(at for axis, at in enumerate(mixed.labels) if axis not in axes or given.get("keepdim"))
    return for_each_result(p, replace(mixed, shape=p.shape(), labels=labels))


def along(p: Propagation, value: Value, dim: int = -1, *_: Any, **__: Any) -> Any:
    """Softmax and similar ops: every element depends on the whole axis."""
    return p.mix(value, [dim % len(value.shape)], "its axis is normalised as a whole")


def spatial(p: Propagation, value: Value, *_: Any, **__: Any) -> Any:
    """Pooling, resizing, border padding: trailing axes are spatial, channels pass through."""
    match = SPATIAL.search(op_name(p.node))
    assert match is not None
    dims = len(value.shape)
    mixed = p.mix(value, range(dims - int(match[1]), dims), "its axis is treated as a spatial axis")
    return for_each_result(p, replace(mixed, shape=p.shape()))


def unpool(p: Propagation, value: Value, indices: Value, *_: Any, **__: Any) -> Any:
    """Max unpooling: the channels are tied to those whose maxima the indices are of."""
    return spatial(p, broadcast(p, [value, indices], value.shape))
