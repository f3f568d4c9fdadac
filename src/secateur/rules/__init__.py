"""What each kind of op does to channel labels. An op that no rule knows keeps its channels, with the reason."""

from __future__ import annotations

import torch
from torch import fx

from secateur.rules.layers import addmm, convolution, embedding, linear, matmul
from secateur.rules.movement import cat, channel_shuffle, glu, movement, narrow, pad, roll, slice_, split, stack
from secateur.rules.names import ALONG, CONVOLUTION, ELEMENTWISE, MOVEMENT, SPATIAL, Rule, op_name
from secateur.rules.norms import batch_norm, group_norm, instance_norm, layer_norm, prelu, weight_norm
from secateur.rules.simple import along, attention, pick, pointwise, reduction, shape_only, spatial, unknown

RULES: dict[str, Rule] = {
    "<built-in function getitem>": pick,
    "addmm": addmm,
    "batch_norm": batch_norm,
    "bmm": matmul,
    "cat": cat,
    "channel_shuffle": channel_shuffle,
    "chunk": split,
    "concat": cat,
    "constant_pad_nd": pad,
    "embedding": embedding,
    "glu": glu,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
    "layer_norm": layer_norm,
    "linear": linear,
    "matmul": matmul,
    "mm": matmul,
    "narrow": narrow,
    "pad": pad,
    "prelu": prelu,
    "rms_norm": layer_norm,
    "roll": roll,
    "scaled_dot_product_attention": attention,
    "slice": slice_,
    "split": split,
    "split_with_sizes": split,
    "stack": stack,
    "sym_size": shape_only,
    "tensor_split": split,
    "weight_norm": weight_norm,
}


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
