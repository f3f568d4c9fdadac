"""Rules of norms: channels that are normalised together are kept or removed together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from secateur._torch import NormWithStatistics
from secateur.channels.labels import Propagation, Value
from secateur.channels.rules.layers import can_regroup, tie_per_channel
from secateur.channels.rules.simple import broadcast
from secateur.network.modules import Slot, named_tensors

OVER_AXIS = "statistics are taken over its axis"
OVER_CHANNELS = "the norm's statistics are taken over all channels"


def batch_norm(p: Propagation, x: Value, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *_: Any) -> Value:
    """Each channel by itself; with batch statistics the other axes are mixed."""
    if training or mean is None:
        x = p.mix(x, [axis for axis in range(len(x.shape)) if axis != 1], OVER_AXIS)
    tie_per_channel(p, x.labels[1], [weight, bias, mean, var, _width(p, x, "num_features")], x.origin)
    return replace(x, plain=False)


def instance_norm(p: Propagation, x: Value, weight: Any, bias: Any, mean: Any, var: Any, *_: Any) -> Value:
    x = p.mix(x, range(2, len(x.shape)), OVER_AXIS)
    tie_per_channel(p, x.labels[1], [weight, bias, mean, var, _width(p, x, "num_features")], x.origin)
    return x


def group_norm(p: Propagation, x: Value, groups: int, weight: Any = None, bias: Any = None, *_: Any) -> Value:
    """Statistics are shared within a group, so a group is removed as a whole."""
    x = p.mix(x, range(2, len(x.shape)), OVER_AXIS)
    tie_per_channel(p, x.labels[1], [weight, bias, _width(p, x, "num_channels")], x.origin)
    if groups == 1 or not can_regroup(p, nn.GroupNorm):
        p.keep("the norm's statistics are taken over all channels of a group", x.labels[1])
    else:
        for vector in x.labels[1]:
            p.ties.tie_rows(vector.view(groups, -1), p.reason("its norm group contains channels that are kept"))
    return x


def layer_norm(p: Propagation, x: Value, shape: list[int], *params: Any) -> Value:
    """Statistics are taken over the last axes, so all channels along them are kept."""
    first = len(x.shape) - len(shape)
    trailing = replace(x, shape=x.shape[first:], labels=x.labels[first:])
    for param in params:
        if isinstance(param, Value):
            broadcast(p, [trailing, param], param.shape)
            p.ties.note(p.ties.per_channel, param.all_labels())
            p.keep(OVER_CHANNELS, [param.all_labels()])
    p.keep(OVER_CHANNELS, [trailing.all_labels()])
    return replace(x, plain=False)


def prelu(p: Propagation, x: Value, weight: Value) -> Value:
    if len(x.shape) > 1:
        tie_per_channel(p, x.labels[1], [weight], x.origin)
    return replace(x, plain=False)


def weight_norm(p: Propagation, v: Value, g: Value, dim: int = 0) -> Value:
    """g v / |v|: rows are independent, a column contributes to the norm of every row."""
    dim %= len(v.shape)
    v = p.mix(v, [axis for axis in range(len(v.shape)) if axis != dim], "its norm is part of weight_norm")
    return replace(broadcast(p, [v, g], v.shape), origin=v.origin)


def _width(p: Propagation, x: Value, attribute: str) -> Value | None:
    """Return a value that stands for the width attribute of a norm without tensors, so that a cut updates it."""
    module = p.module()
    known = isinstance(module, NormWithStatistics | nn.GroupNorm) and not named_tensors(module)
    if not (p.hard_coded and known) or x.shape[1] == 1:
        return None
    labels = p.ties.labels_of(Slot(f"{p.layer()}.{attribute}", 0), x.shape[1])
    return Value((x.shape[1],), ((labels,),), activation=False)
