"""How ops are called, and what their names say of them."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import fx

GETITEM = "<built-in function getitem>"
# Same shape in and out, element by element, though the op itself carries no `pointwise` tag.
ELEMENTWISE = {
    "alias", "alpha_dropout", "bernoulli", "clone", "contiguous", "copy", "detach", "dropout", "empty_like",
    "feature_alpha_dropout", "feature_dropout", "fill", "full_like", "hardsigmoid", "hardswish", "lift_fresh_copy",
    "log_sigmoid", "native_dropout", "ones_like", "rand_like", "randn_like", "relu6", "selu", "softsign", "to",
    "to_copy", "type_as", "zero", "zeros_like",
}  # fmt: skip
SCALING = {"mul", "div", "neg", "clone", "to", "to_copy", "detach", "alias", "contiguous"}  # zeros stay zeros
MOVEMENT = {
    "expand", "expand_as", "flatten", "flip", "movedim", "mT", "numpy_T", "permute",
    "pixel_unshuffle", "repeat", "repeat_interleave", "reshape", "reshape_as", "select", "squeeze", "swapaxes", "t",
    "transpose", "unbind", "unflatten", "unsafe_view", "unsqueeze", "view", "view_as",
}  # fmt: skip
ALONG = {"softmax", "log_softmax", "cumsum", "logcumsumexp", "cumprod"}
SPATIAL = re.compile(r"(?:pool|upsample_\w+|reflection_pad|replication_pad|fractional_max_pool)(\d)d")
CONVOLUTION = re.compile(r"conv(_transpose)?(\d)d$")


def op_name(node: fx.Node) -> str:
    """`relu` for `aten.relu_.default`."""
    return getattr(getattr(node.target, "_opname", None), "strip", lambda _: str(node.target))("_")


def argument_names(node: fx.Node) -> list[str]:
    """The names of an op's arguments, in order."""
    return [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]


def is_pointwise(node: fx.Node) -> bool:
    """The op works on each element by itself."""
    return op_name(node) in ELEMENTWISE or torch.Tag.pointwise in getattr(node.target, "tags", ())


def channel_axis_of(node: fx.Node, dims: int) -> int | None:
    """Which axis of its input an op takes for channels; -1 if it does not say, None if it passes axes on."""
    name = op_name(node)
    if is_pointwise(node) or name == GETITEM:
        return None
    spatial = CONVOLUTION.match(name) or SPATIAL.search(name)
    if spatial:
        return dims - int(spatial[spatial.lastindex or 1]) - 1
    if name in ("batch_norm", "instance_norm", "group_norm", "prelu"):
        return 1
    return dims - 1 if name in ("linear", "layer_norm") else -1


def call_name(func: Any) -> str:
    """`conv2d` for torch's function, the method and the op of a program alike."""
    name = getattr(func, "_opname", None) or getattr(func, "__name__", "")
    if name in ("__matmul__", "__rmatmul__"):
        return "matmul"
    return str(name) if name == "__get__" else str(name).strip("_")
