"""The layers of a network and how they are connected, as a small graph that people can look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from secateur._torch import pytree
from secateur.channels.program import Program
from secateur.network.modules import owner
from secateur.network.operations import CONVOLUTION, op_name

PRODUCTS = {"addbmm", "addmm", "baddbmm", "bmm", "einsum", "embedding", "linear", "matmul", "mm"}


@dataclass(frozen=True)
class Layer:
    """A layer with weights, a place where paths join (add, cat, ...), an input or the output.

    Attributes:
        name: the module's name; that of the op for a join.
        kind: the op, such as `conv2d`, `linear`, `add` or `cat`; `input` or `output`.
        channels: number of channels that it passes on, 0 if it has none.
        inputs: the places in the list of layers that it gets its inputs from; each is before its own.
        parameter: the weight, "" without one.
    """

    name: str
    kind: str
    channels: int
    inputs: tuple[int, ...] = ()
    parameter: str = ""


def layers_of(program: Program) -> tuple[Layer, ...]:
    """Return the layers of a program in the order of their first call.

    >>> [layer.name for layer in layers_of(export(model, example))]
    ['input', 'conv1', 'layer1.0.conv1', 'layer1.0.conv2', 'add', ...]

    Ops in between (norms, activations, pooling, reshapes) belong to the layer before them. An op with weights that is
    no product, such as a norm, is not a layer.
    """
    found: list[Layer] = []
    weights: dict[fx.Node, str] = {}  # what is computed from a parameter only
    places: dict[fx.Node, int] = {}  # the layer that an activation comes from
    for node in program.graph.nodes:
        if node.op == "get_attr":
            weights[node] = str(node.target)
            continue
        if node.op == "placeholder":
            places[node] = len(found)
            found.append(Layer(node.name, "input", _channels(node, 1)))
            continue
        arguments = [node.args[0]] if node.op == "output" else [node.args, node.kwargs]
        nodes = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, fx.Node)]
        sources = tuple(dict.fromkeys(places[one] for one in nodes if one in places))
        if node.op == "output":
            found.append(Layer("output", "output", 0, sources))
            continue
        if not sources:
            if own := [weights[one] for one in nodes if one in weights]:
                weights[node] = own[0]
            continue
        name = op_name(node)
        product = name in PRODUCTS or CONVOLUTION.match(name)
        factors = [weights[one] for one in nodes if one in weights and _dimensions(one) >= 2] if product else []
        if factors:
            places[node] = len(found)
            axis = -1 if name in PRODUCTS else 1
            found.append(Layer(owner(factors[0]), name, _channels(node, axis), sources, factors[0]))
        elif len(sources) > 1:
            places[node] = len(found)
            widest = max(found[source].channels for source in sources)
            found.append(Layer(name, name, _channels(node, 1) if name == "cat" else widest, sources))
        else:
            places[node] = sources[0]
    return tuple(found)


def _value(node: fx.Node) -> Any:
    return node.meta.get("val")


def _dimensions(node: fx.Node) -> int:
    value = _value(node)
    return value.dim() if isinstance(value, Tensor) else 2


def _channels(node: fx.Node, axis: int) -> int:
    """Return the size of an output's channel axis; of a matrix, the last."""
    value = _value(node)
    if not isinstance(value, Tensor) or value.dim() < 2:
        return 0
    return int(value.shape[axis if value.dim() > 2 else -1])
