"""How ops are called, and which belong together."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torch import fx

from secateur.labels import Follower

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
    "expand", "expand_as", "flatten", "flip", "movedim", "mT", "numpy_T", "permute", "pixel_shuffle",
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
