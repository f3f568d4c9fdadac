"""A recording of all calls in a forward pass, and which of its layers can be refitted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from secateur._torch import pytree
from secateur.network.batches import Call
from secateur.network.layer_calls import FunctionCall, layer_call
from secateur.network.modules import mode, named_tensors
from secateur.network.observer import Observer
from secateur.network.operations import CONVOLUTION

ADDITIONS = ("add", "iadd", "radd")
TORCH_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
ATEN_NORM = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")


@dataclass(frozen=True)
class Norm:
    """A batch norm with fixed statistics right behind a layer: `scale * x + shift`."""

    step: int
    tensors: dict[str, str]  # the names of its running_mean, running_var, weight and bias, as far as it has them
    eps: float

    def affine(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the scale and the shift of each channel, in double precision."""
        own = {key: tensors[name].detach().double() for key, name in self.tensors.items()}
        scale = (own["running_var"] + self.eps).rsqrt()
        if "weight" in own:
            scale = scale * own["weight"]
        return scale, own.get("bias", 0) - scale * own["running_mean"]

    @torch.no_grad()
    def add(self, constant: Tensor, tensors: Mapping[str, Tensor]) -> None:
        """Change the norm in place so that it acts as if this constant were added to its input."""
        if "bias" in self.tensors:
            bias = tensors[self.tensors["bias"]]
            bias.add_((self.affine(tensors)[0] * constant).to(bias.dtype))
        else:
            mean = tensors[self.tensors["running_mean"]]
            mean.sub_(constant.to(mean.dtype))


@dataclass(frozen=True)
class RefitLayer:
    """A layer that can be refitted, with the norm and the addition that its output goes into."""

    step: int  # its number among the calls that return a tensor
    weight: str
    bias: str | None
    norm: Norm | None = None
    sum: int | None = None  # the addition that alone takes the output of the layer (and its norm)
    operand: int = 0  # 0 or 1: which operand of the addition that is

    @property
    def end(self) -> int:
        """The step before which everything is known that the fit needs."""
        return self.step if self.sum is None else self.sum

    @property
    def takes_constant(self) -> bool:
        """Whether a constant can be added to each output."""
        return self.bias is not None or self.norm is not None


@dataclass(frozen=True)
class Step:
    """One call that returned a tensor."""

    name: str
    inputs: tuple[int, ...]  # the steps whose results it takes; -1 for a tensor from elsewhere
    tensors: dict[str, str]  # the tensors of the network among its arguments: argument -> name
    eps: float | None = None  # of a batch norm with fixed statistics
    layer: bool = False  # a convolution or linear layer on a batch
    adds: tuple[int, ...] = ()  # for a plain addition of two results: which of them have the shape of the sum
    bytes: int = 0  # of the result


@dataclass(frozen=True)
class Tape:
    """All calls of one forward pass that returned a tensor."""

    steps: tuple[Step, ...]
    outputs: frozenset[int]  # steps whose results the network returns, or passes to a call that is no step

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the calls, in order; a cut network has the same as its original."""
        return tuple(step.name for step in self.steps)

    def bytes_at(self, layer: RefitLayer) -> int:
        """Return the total size of the results that exist while the network waits at a layer."""
        last = {source: number for number, step in enumerate(self.steps) for source in step.inputs}
        last |= dict.fromkeys(self.outputs, len(self.steps))
        waiting = range(layer.end + 1)
        return sum(self.steps[number].bytes for number in waiting if last.get(number, number) >= layer.end)

    def refit_layers(self) -> Iterator[RefitLayer]:
        """Return the layers that can be refitted: called once, with a weight and a bias that no other call uses."""
        uses = Counter(name for step in self.steps for name in step.tensors.values())
        consumers: dict[int, list[int]] = defaultdict(list)
        for number, step in enumerate(self.steps):
            for source in step.inputs:
                consumers[source].append(number)
        claimed: dict[int, int] = {}
        found = []
        for number, step in enumerate(self.steps):
            extra = len(step.inputs) != 1 or any(key[0] == "#" for key in step.tensors)
            if not step.layer or extra or any(uses[name] > 1 for name in step.tensors.values()):
                continue
            norm = self._norm(number, consumers, uses)
            last = norm.step if norm else number
            total = self._sum(last, consumers)
            operand = 0 if total is None else self.steps[total].inputs.index(last)
            found.append(RefitLayer(number, step.tensors["weight"], step.tensors.get("bias"), norm, total, operand))
            if total is not None:  # where two layers are added up, the later one compensates for both
                claimed[total] = number
        for layer in found:
            own = layer.sum is None or claimed[layer.sum] == layer.step
            yield layer if own else replace(layer, sum=None, operand=0)

    def _only_consumer(self, number: int, consumers: dict[int, list[int]]) -> int | None:
        at = consumers[number]
        return at[0] if len(at) == 1 and number not in self.outputs else None

    def _norm(self, number: int, consumers: dict[int, list[int]], uses: Counter[str]) -> Norm | None:
        after = self._only_consumer(number, consumers)
        step = self.steps[after] if after is not None else None
        if step is None or after is None or step.eps is None or step.inputs != (number,):
            return None
        shared = any(uses[name] > 1 for name in step.tensors.values())
        return None if shared else Norm(after, step.tensors, step.eps)

    def _sum(self, number: int, consumers: dict[int, list[int]]) -> int | None:
        after = self._only_consumer(number, consumers)
        if after is None or not self.steps[after].adds:
            return None
        inputs = self.steps[after].inputs
        return after if inputs[0] != inputs[1] and inputs.index(number) in self.steps[after].adds else None


class _Recorder:
    """The steps of a forward pass so far."""

    def __init__(self, network: nn.Module) -> None:
        self.names = {id(tensor): name for name, tensor in named_tensors(network).items()}
        self.results: dict[int, tuple[int, Tensor]] = {}  # by id, the step and the tensor itself, so that its id stays
        self.steps: list[Step] = []
        self.hidden: set[int] = set()  # steps whose results went to calls that are no steps: split, x[0] = y

    def step_of(self, leaf: Any) -> int:
        """Return the step whose result this is, -1 if it is of none."""
        return self.results[id(leaf)][0] if id(leaf) in self.results else -1

    def at(self, call: FunctionCall) -> Any:
        given = [leaf for leaf in pytree.tree_leaves((call.args, call.kwargs)) if isinstance(leaf, Tensor)]
        inputs = tuple(self.step_of(leaf) for leaf in given if id(leaf) not in self.names)
        arguments = call.arguments(_argument_names(call))
        tensors = {key: self.names[id(leaf)] for key, leaf in arguments.items() if id(leaf) in self.names}
        others = [self.names[id(leaf)] for leaf in given if id(leaf) in self.names]
        tensors |= {f"#{i}": other for i, other in enumerate(others) if other not in tensors.values()}
        result = call.run()
        if isinstance(result, Tensor):
            fixed = call.name == "batch_norm" and "running_var" in tensors and not arguments.get("training", False)
            layer = layer_call(call) if "weight" in tensors else None
            step = Step(
                name=call.name,
                inputs=inputs,
                tensors=tensors,
                eps=float(arguments.get("eps", 1e-5)) if fixed else None,
                layer=layer is not None and layer.refittable,
                adds=_addends(call, inputs, result),
                bytes=result.nbytes,
            )
            self.steps.append(step)
            self.results[id(result)] = call.number, result
        elif result is None or any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(result)):
            self.hidden.update(inputs)
        return result


def record(network: nn.Module, call: Call) -> Tape:
    """Run the network once, in evaluation mode, and return a recording of its calls.

    >>> tape = record(model, ((images[:1],), {}))
    >>> [layer.weight for layer in tape.refit_layers()]
    ['conv1.weight', 'conv2.weight', 'fc.weight']
    """
    recorder = _Recorder(network)
    args, kwargs = call
    with mode(network, False), torch.no_grad(), Observer(recorder.at):
        output = network(*args, **kwargs)
    outputs = {recorder.step_of(leaf) for leaf in pytree.tree_leaves(output)}
    return Tape(tuple(recorder.steps), frozenset((outputs | recorder.hidden) - {-1}))


def may_be_refitted(name: str) -> bool:
    """Return whether a call of this name can be a refittable layer, or its norm or sum."""
    return name in ("linear", "batch_norm", *ADDITIONS) or CONVOLUTION.match(name) is not None


def _argument_names(call: FunctionCall) -> tuple[str, ...]:
    if call.name == "batch_norm":
        return TORCH_NORM if call.func is F.batch_norm else ATEN_NORM
    return ("input", "weight", "bias")


def _addends(call: FunctionCall, inputs: tuple[int, ...], result: Tensor) -> tuple[int, ...]:
    if call.name not in ADDITIONS or len(call.args) != 2 or len(inputs) != 2 or call.kwargs.get("alpha", 1) != 1:
        return ()
    return tuple(i for i, operand in enumerate(call.args) if operand.shape == result.shape)
