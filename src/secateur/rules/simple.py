"""Ops that change values in place or mix whole axes: element by element, reductions, pooling, and the unknown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from secateur.labels import Follower, Value
from secateur.ops import SCALING, SPATIAL, argument_names, op_name
from secateur.ties import FIXED


def tensors_in(args: Any) -> list[Value]:
    return [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, Value)]


def as_many(f: Follower, value: Value) -> Any:
    """An op with several results (a maximum and where it is) gives them the same labels."""
    results = f.node.meta["val"]
    return (value,) * len(results) if isinstance(results, tuple | list) else value


def unknown(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Channels that enter an op without a rule stay as they are."""
    values = tensors_in((args, kwargs))
    for value in values:
        f.ties.keep(value.all_labels(), f.reason("its channels enter an op that secateur cannot follow"))
    origin = f"the result of {f.node.target}"
    return f.unlabelled(origin, activation=any(v.activation for v in values))


def shape_only(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An op that looks at sizes, or makes a constant."""
    return f.unlabelled(f"a constant made by {f.node.target}", activation=False)


def pick(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0][args[1]]


def pointwise(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Labels that meet go together; a channel that meets a fixed axis stays."""
    values = tensors_in((args, kwargs))
    result = meet(f, values, f.shape())
    scaled = op_name(f.node) in SCALING and all(v.plain for v in values)
    result = replace(result, plain=scaled)
    return as_many(f, result)


def meet(f: Follower, values: list[Value], shape: tuple[int, ...]) -> Value:
    """The labels of tensors that are broadcast against each other."""
    fields: list[tuple[Tensor, ...]] = []
    for axis in range(len(shape)):
        here = [(v, axis - len(shape) + len(v.shape)) for v in values]
        here = [(v, a) for v, a in here if a >= 0 and v.shape[a] == shape[axis]]
        fields.append(meet_axis(f, here))
    fixed = next((v.origin for v in values if v.activation and not v.all_labels().numel()), "")
    return Value(
        shape, tuple(fields), any(v.activation for v in values), origin=fixed or (values[0].origin if values else "")
    )


def meet_axis(f: Follower, here: list[tuple[Value, int]]) -> tuple[Tensor, ...]:
    labelled = [(v, v.fields[a]) for v, a in here if v.fields[a]]
    if not labelled:
        return ()
    if len(here) == 1:
        return labelled[0][1]
    if any(len(vectors) > 1 for _, vectors in labelled):
        for _, vectors in labelled:
            for vector in vectors:
                f.ties.keep(vector, f.reason("two labelled axes were merged into one"))
        return ()
    result = labelled[0][1][0]
    for v, vectors in labelled[1:]:
        f.ties.tie(result, vectors[0], f.reason(f"it meets elements of {v.origin or 'another tensor'} that stay"))
        result = torch.where(result == FIXED, vectors[0], result)
    for v, a in here:
        if not v.fields[a] and v.shape[a] > 1:
            f.ties.keep(result, f.reason(f"it meets {v.origin or 'an axis'}, whose size is fixed"))
    return (result,)


def reduction(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A sum, mean or maximum over axes: channels along these axes stay."""
    names = argument_names(f.node)
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    value = args[0]
    axes = given.get("dim")
    axes = range(len(value.shape)) if axes in (None, []) else [axes] if isinstance(axes, int) else axes
    axes = sorted({axis % len(value.shape) for axis in axes})
    mixed = f.mix(value, axes, "it is reduced together with the other channels of its axis")
    kept = [fields for axis, fields in enumerate(mixed.fields) if axis not in axes or given.get("keepdim")]
    out = replace(mixed, shape=f.shape(), fields=tuple(kept), plain=False)
    return as_many(f, out)


def along(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Softmax and its kin: every place depends on the whole axis."""
    value = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", -1)
    return replace(f.mix(value, [dim % len(value.shape)], "its axis is normalised as a whole"), plain=False)


def spatial(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Pooling, resizing, border padding: the trailing axes are mixed, channels pass."""
    value = args[0]
    match = SPATIAL.search(op_name(f.node))
    assert match is not None
    count = int(match[1])
    mixed = f.mix(value, list(range(len(value.shape) - count, len(value.shape))), "its axis is treated as space")
    out = replace(mixed, shape=f.shape(), plain=False)
    return as_many(f, out)


def attention(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    for value in tensors_in((args, kwargs)):
        f.ties.keep(value.all_labels(), f.reason("its channels are compared by attention"))
    return f.unlabelled("the result of attention", activation=True)
