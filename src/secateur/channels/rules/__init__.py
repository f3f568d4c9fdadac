"""What each op does to channel labels. Channels that enter an op without a rule are kept, with the reason.

A rule is a function of the propagation and the arguments of the op, tensors as `Value`; it returns the result as
`Value`, after it has tied or kept channels. To add one, write the function and enter it into `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

from secateur._torch import has_unknown_size, pytree
from secateur.channels.labels import Propagation, Value
from secateur.channels.program import Program
from secateur.channels.rules import layers, movement, norms, simple
from secateur.channels.ties import Reason, Ties
from secateur.network.operations import ALONG, CONVOLUTION, GETITEM, MOVEMENT, SPATIAL, is_pointwise, op_name

Rule = Callable[..., Any]

RULES: dict[str, Rule] = {
    GETITEM: simple.getitem,
    "addmm": layers.addmm,
    "batch_norm": norms.batch_norm,
    "bmm": layers.matmul,
    "cat": movement.cat,
    "channel_shuffle": movement.channel_shuffle,
    "chunk": movement.split,
    "concat": movement.cat,
    "constant_pad_nd": movement.pad,
    "embedding": layers.embedding,
    "glu": movement.glu,
    "index": movement.index,
    "index_select": movement.index_select,
    "group_norm": norms.group_norm,
    "instance_norm": norms.instance_norm,
    "layer_norm": norms.layer_norm,
    "linear": layers.linear,
    "matmul": layers.matmul,
    "max_unpool2d": simple.unpool,
    "max_unpool3d": simple.unpool,
    "mm": layers.matmul,
    "narrow": movement.narrow,
    "pad": movement.pad,
    "pixel_shuffle": movement.pixel_shuffle,
    "prelu": norms.prelu,
    "rms_norm": norms.layer_norm,
    "roll": movement.roll,
    "scaled_dot_product_attention": layers.attention,
    "slice": movement.slice_,
    "split": movement.split,
    "split_with_sizes": movement.split,
    "stack": movement.stack,
    "sym_size": simple.sizes,
    "tensor_split": movement.split,
    "weight_norm": norms.weight_norm,
}


def propagate(programs: Iterable[Program], *, hard_coded: bool, longest: bool = True) -> tuple[Ties, list[Propagation]]:
    """Run programs on labels and return the ties between these, and each run.

    Args:
        programs: the modes of one network; they share the labels.
        hard_coded: whether sizes in a program cannot change, since the user's own class is cut.
        longest: where an axis is split and nothing determines which part shrinks, the longest does, else the shortest.
    """
    ties = Ties()
    runs = [Propagation(ties, program, hard_coded, longest) for program in programs]
    for run in runs:
        for node in run.program.graph.nodes:
            _step(run, node)
    return ties, runs


def _step(p: Propagation, node: fx.Node) -> None:
    p.node = node
    if node.op == "placeholder":
        p.values[node] = p.unlabelled(f"the network's input {node.name!r}", activation=True)
    elif node.op == "get_attr":
        p.values[node] = p.parameter(str(node.target))
    elif node.op == "output":
        for value in pytree.tree_leaves(p.look_up(node.args)):
            if isinstance(value, Value):
                p.ties.keep(value.all_labels(), Reason("it is an output of the network"))
    else:
        rule = simple.of_unknown_size if _unknown_size(node) else rule_for(node)
        p.values[node] = rule(p, *p.look_up(node.args), **p.look_up(node.kwargs))


def _unknown_size(node: fx.Node) -> bool:
    """Return whether the result of a node or one of its inputs has a size that depends on values (`y[y > 0]`)."""
    values = [other.meta.get("val") for other in (node, *node.all_input_nodes)]
    return any(map(has_unknown_size, pytree.tree_leaves(values)))


def rule_for(node: fx.Node) -> Rule:
    """Return the rule of a node's op."""
    name = op_name(node)
    if name in RULES:
        return RULES[name]
    if name in MOVEMENT:
        return movement.movement
    if name in ALONG:
        return simple.along
    if CONVOLUTION.match(name):
        return layers.convolution
    if SPATIAL.search(name):
        return simple.spatial
    if is_pointwise(node):
        return simple.pointwise
    if torch.Tag.reduction in getattr(node.target, "tags", ()):
        return simple.reduction
    return simple.unknown
