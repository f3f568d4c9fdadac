"""The condition numbers of the layers of a chain, measured on samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx

from secateur._torch import pytree
from secateur.channels.program import Program
from secateur.network.operations import CONVOLUTION, MOVEMENT, op_name
from secateur.theory.propagation import (
    PRODUCTS,
    Bounded,
    Step,
    absolute_terms,
    norm_scale,
    refusal,
    steps,
    value,
    weight_of,
)

# A relative error stays what it is in these ops: they are homogeneous or, like tanh, concave away from zero.
KEEPING = MOVEMENT | {
    "relu", "relu6", "leaky_relu", "tanh", "hardtanh", "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "dropout", "feature_dropout", "alias", "clone", "contiguous", "detach",
}  # fmt: skip
AVERAGES = {
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "mean", "sum",
}  # fmt: skip
REMEDY = "the theorem is about chains of layers; the propagated bound and the certificate are about any network"


@dataclass
class _Layer:
    """A layer whose output is not complete yet: a norm may follow."""

    weight: str
    terms: Tensor
    node: fx.Node


@torch.no_grad()
def condition_numbers(program: Program, inputs: list[Tensor]) -> dict[str, float]:
    """Return for each layer of a chain, by its weight, the largest ratio of absolute terms to output, over all entries.

    >>> condition_numbers(export(model, x), [x])
    {'fc1.weight': 812.4, 'fc2.weight': 97.1}

    The terms are counted entry by entry, and the output is that of the layer with its bias and the norm behind it: a
    relative error of the inputs, and the error of the layer's own sum, grow by at most this factor. It is infinite
    where an output is zero and its terms are not. A network that is not a chain is refused.
    """
    found: dict[str, float] = {}
    last: _Layer | None = None

    def close(layer: _Layer | None, result: Tensor | None) -> None:
        if layer is not None and result is not None:
            ratio = torch.where(layer.terms > 0, layer.terms / result.abs(), 0.0)
            found[layer.weight] = max(found.get(layer.weight, 0.0), float(ratio.max()))

    for step, known in steps(program, inputs):
        known[step.node] = pytree.tree_map(
            lambda one: Bounded(one) if isinstance(one, Tensor) else one, step.run(value)
        )
        if not _on_the_path(step):
            continue
        if step.name == "batch_norm" and last is not None and last.node in step.node.all_input_nodes:
            last = _Layer(last.weight, last.terms * norm_scale(step), step.node)
            continue
        close(last, known[last.node].value if last else None)
        last = None
        if step.name in PRODUCTS or CONVOLUTION.match(step.name):
            name = weight_of(step)
            if name is None or name in found:
                raise refusal(step, "the weight of a layer is not a parameter of its own", REMEDY)
            last = _Layer(name, absolute_terms(step, by_channel=False), step.node)
        elif step.name in AVERAGES:
            if float(step.args[0].value.min()) < 0:
                raise refusal(step, "it averages values of both signs, so that relative errors may grow", REMEDY)
        elif step.name not in KEEPING:
            raise refusal(step, "relative errors cannot be followed", REMEDY)
    close(last, known[last.node].value if last else None)
    return found


def _on_the_path(step: Step) -> bool:
    """Return whether an op works on activations; refuse one that joins two of them or whose result is used twice."""
    of_input = [node for node in step.node.all_input_nodes if _depends_on_input(node)]
    if len(of_input) > 1 or any(len(node.users) > 1 for node in of_input):
        raise refusal(step, "the network is not a chain of layers", REMEDY)
    return bool(of_input)


def _depends_on_input(node: fx.Node) -> bool:
    """Return whether the value of a node depends on the inputs of the network."""
    seen, waiting = set[fx.Node](), [node]
    while waiting:
        one = waiting.pop()
        if one.op == "placeholder":
            return True
        if one not in seen:
            seen.add(one)
            waiting += one.all_input_nodes
    return False


def layer_order(program: Program) -> list[str]:
    """Return the weights of the layers in the order in which the program runs them."""
    order = []
    for node in program.graph.nodes:
        if node.op == "call_function" and (op_name(node) in PRODUCTS or CONVOLUTION.match(op_name(node))):
            order += [str(arg.target) for arg in node.all_input_nodes[1:2] if arg.op == "get_attr"]
    return order
