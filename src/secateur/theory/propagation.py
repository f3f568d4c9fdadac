"""Entrywise error bounds, propagated through the exported program of a network.

Every tensor is a pair: its value in the original network, and a bound on how far each entry may move. A layer with
weight W whose own sum may be wrong by `eps (z+ + z-)` has the bound `(1 + eps) |W| e + eps (z+ + z-)`: e is the bound
of its input, and the factor 1 + eps is there because the sampled sum is taken over inputs that have moved already. An
op that is not known is refused, with its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from secateur._torch import op_base_name, pytree
from secateur.channels.program import Program
from secateur.errors import SecateurError
from secateur.network.operations import CONVOLUTION, GETITEM, MOVEMENT, argument_names, op_name

# Increasing in every entry: the ends of the interval decide.
MONOTONE = {
    "clamp", "clamp_min", "clamp_max", "elu", "celu", "selu", "hardsigmoid", "hardtanh", "leaky_relu", "relu", "relu6",
    "sigmoid", "log_sigmoid", "softplus", "softsign", "tanh", "max_pool1d", "max_pool2d", "max_pool3d",
    "adaptive_max_pool1d", "adaptive_max_pool2d", "amax", "exp", "sqrt",
}  # fmt: skip
# Affine with weights from 0 up: the bound moves like the value.
POSITIVE = MOVEMENT | {
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "mean", "sum", "cat", "stack", "split", "split_with_sizes", "chunk", "slice", "narrow", "pad", "constant_pad_nd",
    "roll", "dropout", "feature_dropout", "alias", "clone", "contiguous", "detach", "lift_fresh_copy", "to", "to_copy",
    "upsample_nearest1d", "upsample_nearest2d", "upsample_bilinear2d", "channel_shuffle", "pixel_shuffle",
    "index_select", GETITEM,
}  # fmt: skip
LIPSCHITZ = {"abs": 1.0, "neg": 1.0, "sin": 1.0, "cos": 1.0, "gelu": 1.13, "silu": 1.1, "hardswish": 1.5, "mish": 1.1}
PRODUCTS = {"linear": ("input", "weight"), "matmul": ("self", "other"), "mm": ("self", "mat2")}


@dataclass(frozen=True)
class Bounded:
    """A tensor of the original network, and a bound on the change of each entry; None if it cannot change."""

    value: Tensor
    error: Tensor | None = None


@dataclass(frozen=True)
class Step:
    """One op of a program as it runs: its node, and its arguments by name."""

    node: fx.Node
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of the op, such as `relu`."""
        return op_name(self.node)

    @property
    def named(self) -> dict[str, Any]:
        """The arguments by name."""
        return {**dict(zip(argument_names(self.node), self.args, strict=False)), **self.kwargs}

    def run(self, change: Callable[[Any], Any], **replaced: Any) -> Any:
        """Return the result of the op, with `change` applied to every pair, and some arguments replaced."""
        given = {**self.named, **replaced} if replaced else {}
        args, kwargs = ((), given) if replaced else (self.args, self.kwargs)
        args, kwargs = pytree.tree_map(change, (args, kwargs), is_leaf=lambda leaf: isinstance(leaf, Bounded))
        return self.node.target(*args, **kwargs)  # type: ignore[operator]


def steps(program: Program, inputs: list[Tensor]) -> Iterator[tuple[Step, dict[fx.Node, Any]]]:
    """Yield each op of a program with the values so far; the caller sets the op's own value before it goes on."""
    known: dict[fx.Node, Any] = {}
    waiting = iter(inputs)
    for node in program.graph.nodes:
        if node.op == "placeholder":
            known[node] = Bounded(next(waiting))
        elif node.op == "get_attr":
            known[node] = Bounded(program.tensors[str(node.target)].detach())
        elif node.op == "call_function":
            args, kwargs = pytree.tree_map(lambda arg: known.get(arg, arg) if isinstance(arg, fx.Node) else arg,
                                           (node.args, dict(node.kwargs)))  # fmt: skip
            yield Step(node, args, kwargs), known
            if (op_base_name(node.target) or "").endswith("_") and isinstance(node.args[0], fx.Node):
                known[node.args[0]] = known[node]  # it was changed in place


@torch.no_grad()
def propagate(program: Program, inputs: list[Tensor], eps: Mapping[str, float]) -> Bounded:
    """Return the output of the original network for some inputs, and a bound on the change of each entry.

    >>> found = propagate(export(model, x), [x], {"conv2.weight": 0.1})
    >>> found.error / found.value.abs()

    Args:
        program: of the original network, in evaluation mode.
        inputs: its input tensors in order.
        eps: for the weight of each layer whose sum may be wrong, the error relative to z+ + z-.
    """
    met: set[str] = set()
    known: dict[fx.Node, Any] = {}
    for step, known in steps(program, inputs):
        weight = weight_of(step)
        own = eps.get(weight, 0.0) if weight else 0.0
        met |= {weight} if weight else set()
        if own or any(one.error is not None for one in _pairs((step.args, step.kwargs))):
            known[step.node] = _bounded(step, own)
        else:
            known[step.node] = pytree.tree_map(_pair, step.run(value))
    if missing := eps.keys() - met:
        raise SecateurError(
            "no op of its program uses its weight as a parameter",
            layer=sorted(missing)[0],
            remedy="fold a parametrisation into the weight first (torch.nn.utils.parametrize.remove_parametrizations)",
        )
    (result,) = _pairs(pytree.tree_map(lambda node: known.get(node), program.graph.output_node().args[0]))
    return result


def weight_of(step: Step) -> str | None:
    """Return the name of the parameter that a convolution or a product multiplies its input by; None for other ops."""
    names = PRODUCTS.get(step.name, ("input", "weight") if CONVOLUTION.match(step.name) else None)
    if names is None:
        return None
    node = dict(zip(argument_names(step.node), step.node.args, strict=False)).get(names[1])
    return str(node.target) if isinstance(node, fx.Node) and node.op == "get_attr" else None


def value(one: Any) -> Any:
    """Return the value of a pair, copied, since an op may work in place; anything else as it is."""
    return one.value.clone() if isinstance(one, Bounded) else one


def absolute_terms(step: Step, *, by_channel: bool) -> Tensor:
    """Return the sum of the absolute terms of every output of a layer, without its bias.

    Args:
        by_channel: take the absolute value of each input channel's window, which is z+ + z-, instead of each entry;
            only for ordinary convolutions. The other sum is at least as large.
    """
    named, (left, right) = step.named, PRODUCTS.get(step.name, ("input", "weight"))
    x, weight = named[left].value, named[right].value
    plain = CONVOLUTION.match(step.name) and not step.name.startswith("conv_transpose") and named.get("groups", 1) == 1
    if not (by_channel and plain):
        return _without_bias(step, **{left: x.abs(), right: weight.abs()})
    channels, outputs = weight.shape[1], weight.shape[0]
    terms = _without_bias(
        step, input=x, weight=weight.transpose(0, 1).reshape(channels * outputs, 1, *weight.shape[2:]), groups=channels
    )
    return terms.unflatten(1, (channels, outputs)).abs().sum(1)


def refusal(step: Step, cause: str, remedy: str) -> SecateurError:
    """Return an error that names an op and the module in which it runs."""
    stack = step.node.meta.get("nn_module_stack") or {}
    module = next(reversed([str(path) for path, _ in stack.values()]), "") if stack else ""
    return SecateurError(f"{cause}: the op {step.name}", layer=module or step.node.name, remedy=remedy)


def _bounded(step: Step, own: float) -> Any:
    name = step.name
    if name in PRODUCTS or CONVOLUTION.match(name):
        return _layer(step, own)
    if name == "batch_norm":
        return _batch_norm(step)
    if name in MONOTONE:
        low, middle, high = (step.run(partial(_moved, sign=sign)) for sign in (-1.0, 0.0, 1.0))
        return Bounded(middle, torch.maximum(high - middle, middle - low).clamp(min=0))
    if name in POSITIVE:
        still, moved = step.run(lambda one: _scaled(one, 0.0)), step.run(lambda one: _scaled(one, 1.0))
        return pytree.tree_map(lambda one, a, b: Bounded(one, (b - a).abs()), step.run(value), still, moved)
    if name in LIPSCHITZ:
        return Bounded(step.run(value), LIPSCHITZ[name] * _error(step.args[0]))
    if name in ("add", "sub"):
        result = step.run(value)
        first, second = step.args[:2]
        error = _error(first) + abs(step.named.get("alpha", 1)) * _error(second)
        return Bounded(result, torch.zeros_like(result) + error)
    if name in ("mul", "div"):
        return _product(step)
    raise refusal(
        step,
        "no bound is known for an op that errors reach",
        "propagate through the part of the network before it; a certificate needs no such chain",
    )


def _layer(step: Step, own: float) -> Bounded:
    left, right = PRODUCTS.get(step.name, ("input", "weight"))
    x, weight = step.named[left], step.named[right]
    if not isinstance(weight, Bounded) or weight.error is not None:
        raise refusal(step, "the weights of a layer depend on its input", "a certificate needs no such chain")
    result = step.run(value)
    error = torch.zeros_like(result)
    if x.error is not None:
        error = (1 + own) * _without_bias(step, **{left: x.error, right: weight.value.abs()})
    if own:
        error = error + own * absolute_terms(step, by_channel=True)
    return Bounded(result, error)


def _without_bias(step: Step, **replaced: Any) -> Tensor:
    bias = {"bias": None} if "bias" in argument_names(step.node) else {}
    found: Tensor = step.run(value, **replaced, **bias)
    return found


def _batch_norm(step: Step) -> Bounded:
    x = step.named["input"]
    return Bounded(step.run(value), x.error * norm_scale(step))


def norm_scale(step: Step) -> Tensor:
    """Return the absolute factor of a batch norm in evaluation, in the shape of its input."""
    named = step.named
    factor = named["running_var"].value.add(named["eps"]).rsqrt()
    if isinstance(named.get("weight"), Bounded):
        factor = factor * named["weight"].value.abs()
    return factor.view(1, -1, *[1] * (named["input"].value.dim() - 2))


def _product(step: Step) -> Bounded:
    a, b = step.args[:2]
    result = step.run(value)
    if step.name == "div":
        if isinstance(b, Bounded) and b.error is not None:
            raise refusal(step, "no bound is known for a division by what errors reach", "use a certificate")
        return Bounded(result, torch.zeros_like(result) + _error(a) / abs(b.value if isinstance(b, Bounded) else b))
    sizes = [abs(one.value) if isinstance(one, Bounded) else abs(one) for one in (a, b)]
    error = sizes[0] * _error(b) + sizes[1] * _error(a) + _error(a) * _error(b)
    return Bounded(result, torch.zeros_like(result) + error)


def _error(one: Any) -> Any:
    return one.error if isinstance(one, Bounded) and one.error is not None else 0.0


def _moved(one: Any, sign: float) -> Any:
    if not isinstance(one, Bounded):
        return one
    return one.value.clone() if one.error is None else one.value + sign * one.error


def _scaled(one: Any, factor: float) -> Any:
    if not isinstance(one, Bounded) or not one.value.is_floating_point():
        return value(one)
    return torch.zeros_like(one.value) if one.error is None else one.error * factor


def _pair(one: Any) -> Any:
    return Bounded(one) if isinstance(one, Tensor) else one


def _pairs(tree: Any) -> list[Bounded]:
    leaves = pytree.tree_leaves(tree, is_leaf=lambda leaf: isinstance(leaf, Bounded))
    return [leaf for leaf in leaves if isinstance(leaf, Bounded)]
