"""Find the axis of the attention heads where a reshape splits channels into heads and their width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from secateur.network.operations import GETITEM, is_pointwise, op_name

ATTENTION = "scaled_dot_product_attention"
PRODUCTS = ("matmul", "bmm")
MOVES = ("movedim", "permute", "select", "squeeze", "swapaxes", "transpose", "unbind", "unsqueeze")
SAME_AXES = ("layer_norm", "rms_norm")
STEPS = 200  # ops that are followed at most


def heads_axis(node: fx.Node, axes: Sequence[int], shape: tuple[int, ...]) -> int | None:
    """Return which of several axes attention takes for its heads; None if the result does not enter attention.

    Attention compares queries with keys by products over the last two axes, in one op or written out, and does so for
    each index of the axis before them: that is the axis of the heads.

    Args:
        node: the op that splits the channels.
        axes: the axes of its result that they are split into.
        shape: the shape of its result.
    """
    for axis in axes:
        marker = torch.arange(shape[axis]).view([-1 if d == axis else 1 for d in range(len(shape))]).expand(shape)
        if _is_of_heads(node, marker):
            return axis
    return None


def _is_of_heads(node: fx.Node, marker: Tensor) -> bool:
    """Follow an axis, the one along which the marker varies, through data movement to the first product."""
    ahead: list[tuple[fx.Node, Any]] = [(user, marker) for user in node.users]
    for _ in range(STEPS):
        if not ahead:
            break
        user, found = ahead.pop()
        name = op_name(user)
        if name == GETITEM:
            result = found[user.args[1]]
        elif not isinstance(found, Tensor):
            continue
        elif name == ATTENTION or (name in PRODUCTS and _of_activations(user)):
            if found.dim() > 2 and _varying(found) == found.dim() - 3:
                return True
            continue
        elif name in MOVES:
            result = getattr(torch, name)(found, *user.args[1:], **user.kwargs)
        elif (is_pointwise(user) or name in SAME_AXES) and _dims(user) == found.dim():
            result = found
        else:
            continue
        ahead += [(following, result) for following in user.users]
    return False


def _of_activations(node: fx.Node) -> bool:
    """Return whether both operands of a product have an axis for heads, which weights do not."""
    return all(isinstance(arg, fx.Node) and _dims(arg) > 2 for arg in node.args[:2])


def _dims(node: fx.Node) -> int:
    value = node.meta.get("val")
    return value.dim() if isinstance(value, Tensor) else -1


def _varying(marker: Tensor) -> int | None:
    axes = [axis for axis in range(marker.dim()) if marker.shape[axis] > 1 and marker.stride(axis)]
    return axes[0] if len(axes) == 1 else None
