"""What each kind of op does to channel labels. An op that no rule knows keeps its channels, with the reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.utils import _pytree as pytree

from secateur.labels import Follower, Value
from secateur.program import named_tensors
from secateur.ties import FIXED, Slot

Rule = Callable[[Follower, tuple[Any, ...], dict[str, Any]], Any]

# Same shape in and out, element by element, though the op itself carries no `pointwise` tag.
ELEMENTWISE = {
    "alias", "alpha_dropout", "bernoulli", "clone", "contiguous", "copy", "detach", "dropout", "empty_like",
    "feature_alpha_dropout", "feature_dropout", "fill", "full_like", "hardsigmoid", "hardswish", "lift_fresh_copy",
    "log_sigmoid", "native_dropout", "ones_like", "rand_like", "randn_like", "relu6", "selu", "softsign", "to",
    "to_copy", "type_as", "zero", "zeros_like",
}  # fmt: skip
SCALING = {"mul", "div", "neg", "clone", "to", "to_copy", "detach", "alias", "contiguous"}  # zeros stay zeros
MOVEMENT = {
    "channel_shuffle", "constant_pad_nd", "expand", "expand_as", "flatten", "flip", "movedim", "pad",
    "permute", "pixel_shuffle", "pixel_unshuffle", "repeat", "repeat_interleave", "reshape", "roll", "select",
    "squeeze", "swapaxes", "t", "transpose", "unbind", "unflatten", "unfold", "unsafe_view", "unsqueeze", "view",
    "view_as", "reshape_as", "mT", "numpy_T",
}  # fmt: skip
SAME_AS: dict[str, Any] = {  # spread labels have no memory layout that `view` would accept
    "view": torch.reshape,
    "unsafe_view": torch.reshape,
    "view_as": torch.reshape,
    "reshape_as": torch.reshape,
    "expand_as": torch.Tensor.expand,
}
ALONG = {"softmax", "log_softmax", "cumsum", "sort", "logcumsumexp", "cumprod"}
SPATIAL = re.compile(r"(?:pool|upsample_\w+|reflection_pad|replication_pad|fractional_max_pool)(\d)d")
CONVOLUTION = re.compile(r"conv(_transpose)?(\d)d$")


def op_name(node: fx.Node) -> str:
    """`relu` for `aten.relu_.default`."""
    return getattr(getattr(node.target, "_opname", None), "strip", lambda _: str(node.target))("_")


def argument_names(node: fx.Node) -> list[str]:
    """The names of an op's arguments, in order."""
    return [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]


def rule_for(node: fx.Node) -> Rule:
    name = op_name(node)
    if name in RULES:
        return RULES[name]
    if name in MOVEMENT:
        return movement
    if name in ALONG:
        return along
    if CONVOLUTION.match(name):
        return convolution
    if SPATIAL.search(name):
        return spatial
    tags = getattr(node.target, "tags", ())
    if name in ELEMENTWISE or torch.Tag.pointwise in tags:
        return pointwise
    if torch.Tag.reduction in tags:
        return reduction
    return unknown


def channel_axis_of(node: fx.Node, dims: int) -> int | None:
    """Which axis of its input an op takes for channels; -1 if it does not say, None if it passes axes on."""
    name = op_name(node)
    if rule_for(node) in (pointwise, pick):
        return None
    spatial = CONVOLUTION.match(name) or SPATIAL.search(name)
    if spatial:
        return dims - int(spatial[spatial.lastindex or 1]) - 1
    if name in ("batch_norm", "instance_norm", "group_norm", "prelu"):
        return 1
    return dims - 1 if name in ("linear", "layer_norm") else -1


def tensors_in(args: Any) -> list[Value]:
    return [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, Value)]


def unknown(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Channels that enter an op without a rule stay as they are."""
    assert f.node is not None
    values = tensors_in((args, kwargs))
    for value in values:
        f.ties.keep(value.all_labels(), f.reason("its channels enter an op that secateur cannot follow"))
    origin = f"the result of {f.node.target}"
    return f.unlabelled(f.node, origin, activation=any(v.activation for v in values))


def shape_only(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An op that looks at sizes, or makes a constant."""
    assert f.node is not None
    return f.unlabelled(f.node, f"a constant made by {f.node.target}", activation=False)


def pick(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0][args[1]]


def pointwise(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Labels that meet go together; a channel that meets a fixed axis stays."""
    assert f.node is not None
    values = tensors_in((args, kwargs))
    result = meet(f, values, f.shape())
    scaled = op_name(f.node) in SCALING and all(v.plain for v in values)
    result = replace(result, plain=scaled)
    return (result,) if isinstance(f.node.meta["val"], tuple | list) else result


def meet(f: Follower, values: list[Value], shape: tuple[int, ...]) -> Value:
    """The labels of tensors that are broadcast against each other."""
    fields: list[tuple[Tensor, ...]] = []
    for axis in range(len(shape)):
        here = [(v, axis - len(shape) + len(v.shape)) for v in values]
        here = [(v, a) for v, a in here if a >= 0 and v.shape[a] == shape[axis]]
        fields.append(_meet_axis(f, here))
    fixed = next((v.origin for v in values if v.activation and not v.all_labels().numel()), "")
    return Value(
        shape, tuple(fields), any(v.activation for v in values), origin=fixed or (values[0].origin if values else "")
    )


def _meet_axis(f: Follower, here: list[tuple[Value, int]]) -> tuple[Tensor, ...]:
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


def movement(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Data is moved, not changed: do the same to the labels."""
    assert f.node is not None
    name, (value, *rest) = op_name(f.node), args
    rest = [v.shape if isinstance(v, Value) else v for v in rest]
    if name in ("constant_pad_nd", "pad"):
        return _pad(f, value, rest, kwargs)
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


def _pad(f: Follower, value: Value, rest: list[Any], kwargs: dict[str, Any]) -> Value:
    """Channels that a pad adds are new labels; the width of the pad is a literal."""
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
            fields.append(_meet_axis(f, [(v, axis) for v in values]))
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
    assert f.node is not None
    value = args[0]
    sizes = [concrete_part for concrete_part in (tuple(part.shape) for part in f.node.meta["val"])]
    dim = (args[2] if len(args) > 2 else kwargs.get("dim", 0)) % len(value.shape)
    widths = [int(size[dim]) for size in sizes]
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


def reduction(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A sum, mean or maximum over axes: channels along these axes stay."""
    assert f.node is not None
    names = argument_names(f.node)
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    value = args[0]
    axes = given.get("dim")
    axes = range(len(value.shape)) if axes in (None, []) else [axes] if isinstance(axes, int) else axes
    axes = sorted({axis % len(value.shape) for axis in axes})
    mixed = f.mix(value, axes, "it is reduced together with the other channels of its axis")
    kept = [fields for axis, fields in enumerate(mixed.fields) if axis not in axes or given.get("keepdim")]
    out = replace(mixed, shape=f.shape(), fields=tuple(kept), plain=False)
    many = isinstance(f.node.meta["val"], tuple | list)
    return (out,) * len(f.node.meta["val"]) if many else out


def along(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Softmax and its kin: every place depends on the whole axis."""
    value = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", -1)
    return replace(f.mix(value, [dim % len(value.shape)], "its axis is normalised as a whole"), plain=False)


def spatial(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Pooling, resizing, border padding: the trailing axes are mixed, channels pass."""
    assert f.node is not None
    value = args[0]
    match = SPATIAL.search(op_name(f.node))
    assert match is not None
    count = int(match[1])
    mixed = f.mix(value, list(range(len(value.shape) - count, len(value.shape))), "its axis is treated as space")
    out = replace(mixed, shape=f.shape(), plain=False)
    many = isinstance(f.node.meta["val"], tuple | list)
    return (out,) * len(f.node.meta["val"]) if many else out


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
    assert f.node is not None
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
    elif x.fields[channel] and groups >= x.shape[channel] // groups and _can_regroup(f, _ConvNd):
        made = _whole_groups(f, x.fields[channel][0], w, groups, transposed)
    else:
        made = _same_in_every_group(f, x, channel, w, groups, transposed)
    shape = f.shape()
    made = carry(f, made, [bias], f.layer())
    fields = (*x.fields[:channel], made, *((),) * count)
    origin = x.origin if not made else f.layer()
    return Value(shape, fields, x.activation or w.activation, origin=origin)


def _can_regroup(f: Follower, kind: type) -> bool:
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


def batch_norm(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Each channel for itself; with batch statistics the other axes are mixed."""
    x, weight, bias, mean, var = args[:5]
    if args[5] or mean is None:
        x = f.mix(x, [axis for axis in range(len(x.shape)) if axis != 1], "statistics are taken over its axis")
    carry(f, x.fields[1], [weight, bias, mean, var, _width(f, x, "num_features")], x.origin)
    return replace(x, plain=False)


def _width(f: Follower, x: Value, attribute: str) -> Value | None:
    """A norm without any tensor still has a width to keep true: let the attribute stand for a tensor."""
    module = f.module()
    known = isinstance(module, _NormBase | nn.GroupNorm) and not named_tensors(module)
    if not (f.literal and known) or x.shape[1] == 1:
        return None
    labels = f.ties.atoms(Slot(f"{f.layer()}.{attribute}", 0), x.shape[1])
    return Value((x.shape[1],), ((labels,),), activation=False)


def instance_norm(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, weight, bias, mean, var = args[:5]
    x = f.mix(x, list(range(2, len(x.shape))), "statistics are taken over its axis")
    carry(f, x.fields[1], [weight, bias, mean, var, _width(f, x, "num_features")], x.origin)
    return replace(x, plain=False)


def group_norm(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Statistics are shared in a group, so a group goes as a whole."""
    x, groups, weight, bias = (*args, *(None, None))[:4]
    x = f.mix(x, list(range(2, len(x.shape))), "statistics are taken over its axis")
    carry(f, x.fields[1], [weight, bias, _width(f, x, "num_channels")], x.origin)
    for vector in x.fields[1]:
        if groups == 1 or not _can_regroup(f, nn.GroupNorm):
            f.ties.keep(vector, f.reason("the norm's statistics are taken over all channels of a group"))
        else:
            f.ties.tie_rows(vector.view(groups, -1), f.reason("its norm group holds channels that stay"))
    return replace(x, plain=False)


def layer_norm(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Statistics are taken over the last axes: nothing along them can go."""
    x, shape, *params = args
    axes = list(range(len(x.shape) - len(shape), len(x.shape)))
    what = "the norm's statistics are taken over all channels"
    for param in params:
        if isinstance(param, Value):
            f.ties.keep(param.all_labels(), f.reason(what))
            for vectors in param.fields:
                for vector in vectors:
                    f.ties.note(f.ties.carriers, vector)
    for axis in axes:
        for vector in x.fields[axis]:
            f.ties.keep(vector, f.reason(what))
    return replace(x, plain=False)


def prelu(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, weight = args
    if len(x.shape) > 1:
        carry(f, x.fields[1], [weight], x.origin)
    return replace(x, plain=False)


def weight_norm(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """g v / |v|: rows go freely, columns change every row's length."""
    v, g = args[:2]
    dim = (args[2] if len(args) > 2 else 0) % len(v.shape)
    v = f.mix(v, [axis for axis in range(len(v.shape)) if axis != dim], "its length is part of weight_norm")
    return replace(meet(f, [v, g], v.shape), origin=v.origin)


def embedding(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    weight, shape = args[0], f.shape()
    return Value(shape, (*((),) * (len(shape) - 1), produce(f, weight, 1)), True, origin=f.layer())


def attention(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    assert f.node is not None
    for value in tensors_in((args, kwargs)):
        f.ties.keep(value.all_labels(), f.reason("its channels are compared by attention"))
    return f.unlabelled(f.node, "the result of attention", activation=True)


RULES: dict[str, Rule] = {
    "<built-in function getitem>": pick,
    "addmm": addmm,
    "batch_norm": batch_norm,
    "bmm": matmul,
    "cat": cat,
    "chunk": split,
    "concat": cat,
    "embedding": embedding,
    "glu": glu,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
    "layer_norm": layer_norm,
    "linear": linear,
    "matmul": matmul,
    "mm": matmul,
    "narrow": narrow,
    "prelu": prelu,
    "rms_norm": layer_norm,
    "scaled_dot_product_attention": attention,
    "slice": slice_,
    "split": split,
    "split_with_sizes": split,
    "stack": stack,
    "sym_size": shape_only,
    "tensor_split": split,
    "weight_norm": weight_norm,
}
