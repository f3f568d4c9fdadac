"""What each kind of op does to channel labels. An op that no rule knows keeps its channels, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from secateur.labels import Follower, Value
from secateur.ops import ALONG, CONVOLUTION, GETITEM, MOVEMENT, SPATIAL, is_pointwise, op_name
from secateur.program import Program
from secateur.rules.layers import addmm, convolution, embedding, linear, matmul
from secateur.rules.movement import (
    cat,
    channel_shuffle,
    glu,
    movement,
    narrow,
    pad,
    pixel_shuffle,
    roll,
    slice_,
    split,
    stack,
)
from secateur.rules.norms import batch_norm, group_norm, instance_norm, layer_norm, prelu, weight_norm
from secateur.rules.simple import along, attention, pick, pointwise, reduction, shape_only, spatial, unknown
from secateur.ties import Reason, Ties

Rule = Callable[[Follower, tuple[Any, ...], dict[str, Any]], Any]

RULES: dict[str, Rule] = {
    GETITEM: pick,
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
    "pixel_shuffle": pixel_shuffle,
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


def follow(programs: Iterable[Program], *, literal: bool, longest: bool = True) -> tuple[Ties, list[Follower]]:
    """Run every program on labels, all in one book.

    literal: sizes written into a program cannot be changed, since the user's own class is cut.
    longest: where an axis is split and nothing says which part shrinks, the longest does, else the shortest.
    """
    ties = Ties()
    followers = [Follower(ties, program, literal, longest) for program in programs]
    for follower in followers:
        for node in follower.program.graph.nodes:
            _step(follower, node)
    return ties, followers


def _step(f: Follower, node: fx.Node) -> None:
    f.node = node
    if node.op == "placeholder":
        f.values[node] = f.unlabelled(f"the network's input {node.name!r}", activation=True)
    elif node.op == "get_attr":
        f.values[node] = f.parameter(str(node.target))
    elif node.op == "output":
        for value in pytree.tree_leaves(f.look_up(node.args)):
            if isinstance(value, Value):
                f.ties.keep(value.all_labels(), Reason("it is an output of the network"))
    else:
        f.values[node] = rule_for(node)(f, f.look_up(node.args), f.look_up(node.kwargs))


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
    if is_pointwise(node):
        return pointwise
    if torch.Tag.reduction in getattr(node.target, "tags", ()):
        return reduction
    return unknown
