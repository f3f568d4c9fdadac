"""The names of ops, and the properties that follow from them."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import fx

from secateur._torch import op_base_name, op_schema_arguments

GETITEM = "<built-in function getitem>"
# Elementwise ops without a `pointwise` tag of their own.
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
SPATIAL = re.compile(r"^\w*(?:pool|upsample_\w+|reflection_pad|replication_pad|fractional_max_pool)(\d)d")
CONVOLUTION = re.compile(r"conv(_transpose)?(\d)d$")


def op_name(node: fx.Node) -> str:
    """Return `relu` for `aten.relu_.default`, `mylib::gate` for an op of another library."""
    name = op_base_name(node.target)
    return str(node.target) if name is None else name.strip("_")


def argument_names(node: fx.Node) -> list[str]:
    """Return the names of an op's arguments, in order."""
    return op_schema_arguments(node.target)


def is_pointwise(node: fx.Node) -> bool:
    """Return whether an op is elementwise."""
    return op_name(node) in ELEMENTWISE or torch.Tag.pointwise in getattr(node.target, "tags", ())


def channel_axis_of(node: fx.Node, dims: int) -> int | None:
    """Return the channel axis of an op's input; -1 if it is unknown, None if the op keeps the axes of its input."""
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
    """Return the name of a torch function, method or op, such as `conv2d` for all three."""
    name = op_base_name(func) or getattr(func, "__name__", "")
    if name in ("__matmul__", "__rmatmul__"):
        return "matmul"
    return str(name) if name == "__get__" else str(name).strip("_")
