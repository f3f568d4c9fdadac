"""Norms: what is normalised together stays or goes together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from secateur.labels import Follower, Value
from secateur.program import named_tensors
from secateur.rules.layers import can_regroup, carry
from secateur.rules.simple import meet
from secateur.ties import Slot


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
        if groups == 1 or not can_regroup(f, nn.GroupNorm):
            f.ties.keep(vector, f.reason("the norm's statistics are taken over all channels of a group"))
        else:
            f.ties.tie_rows(vector.view(groups, -1), f.reason("its norm group holds channels that stay"))
    return replace(x, plain=False)


def layer_norm(f: Follower, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Statistics are taken over the last axes: nothing along them can go."""
    x, shape, *params = args
    first = len(x.shape) - len(shape)
    for param in params:
        if isinstance(param, Value):
            meet(f, [replace(x, shape=x.shape[first:], fields=x.fields[first:]), param], param.shape)
            for vectors in param.fields:
                for vector in vectors:
                    f.ties.note(f.ties.carriers, vector)
                    f.ties.keep(vector, f.reason("the norm's statistics are taken over all channels"))
    for vectors in x.fields[first:]:
        for vector in vectors:
            f.ties.keep(vector, f.reason("the norm's statistics are taken over all channels"))
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
