"""Count the parameters and the multiply-accumulates (MACs) of a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from secateur._torch import CONVOLUTION_OPS, TorchDispatchMode, clear_forward_hooks, flop_registry, pytree
from secateur.channels.graph import ChannelGraph, Share
from secateur.checks import known_keywords
from secateur.network.examples import Example, call_arguments, explain_errors
from secateur.network.modules import duplicate, exclusive, meta_copy, mode, unwrap
from secateur.tables import magnitude

aten = torch.ops.aten
# Convolutions and two-dimensional products always count. A batched product counts if one factor is a parameter;
# between two activations it is attention, which belongs to no filter.
ALWAYS = CONVOLUTION_OPS | {aten.mm, aten.addmm}
WITH_A_PARAMETER = {aten.bmm, aten.baddbmm}


@dataclass(frozen=True)
class LayerCost:
    """Parameters and MACs of one part of a network."""

    params: int
    macs: int


@dataclass(frozen=True)
class Cost:
    """Parameters and MACs of a network, in total and by part; `print(cost)` shows the totals.

    Attributes:
        params: number of parameters; one that several layers share counts once.
        macs: number of MACs of one forward pass; a layer that is called twice counts twice.
        layers: for each module the parameters that it owns and the MACs that run while it is the innermost module.
        parameters: for each parameter, by its first name, its elements and the MACs that it is a factor of.
    """

    params: int
    macs: int
    layers: Mapping[str, LayerCost]
    parameters: Mapping[str, LayerCost]

    def __str__(self) -> str:
        return f"{magnitude(self.params)} parameters, {magnitude(self.macs)} MACs"


@known_keywords
def cost(model: nn.Module, example: Example) -> Cost:
    """Return the number of parameters of a model and of the MACs of its convolutions and linear layers.

    >>> print(sc.cost(torchvision.models.resnet18(), torch.zeros(1, 3, 224, 224)))
    11.69 M parameters, 1.814 G MACs

    The forward pass runs in eval mode on a copy without data (the meta device), so it costs neither time nor memory;
    only a network that depends on the values of its tensors is run on the example itself.

    Args:
        model: the network; it is not changed.
        example: inputs as `forward` takes them: a tensor, a tuple of arguments or a dict of keyword arguments.
    """
    model = unwrap(model)
    with exclusive(), explain_errors(example):
        modules, weights = _macs_on_meta(model, example) or _macs(duplicate(model), example)

    held: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        held[name.rpartition(".")[0]] += parameter.numel()
    order = [name for name, _ in model.named_modules() if held[name] or modules[name]]
    return Cost(
        params=held.total(),
        macs=modules.total(),
        layers={name: LayerCost(held[name], modules[name]) for name in order},
        parameters={name: LayerCost(p.numel(), weights[name]) for name, p in model.named_parameters()},
    )


def shares(graph: ChannelGraph, cost: Cost) -> dict[str, Share]:
    """Return for each group the fraction of all parameters and MACs that lies in its channels.

    >>> shares(sc.trace(model, example), sc.cost(model, example))["layer1.0.conv1"]
    Share(params=0.0063, macs=0.127)

    A weight between two groups counts in both, so the fractions can add up to more than one.
    """
    result = {}
    for group in graph.groups:
        # The elements outside the group form a box: along each axis, the indices that it does not own.
        outside: dict[str, float] = {}
        for slot, units in zip(group.slots, group.indices, strict=True):
            if slot.parameter in cost.parameters:  # else it is a buffer
                owned = len({index for unit in units for index in unit})
                free = 1 - owned / graph.shapes[slot.parameter][slot.axis]
                outside[slot.parameter] = outside.get(slot.parameter, 1.0) * free
        params = sum((1 - free) * cost.parameters[name].params for name, free in outside.items())
        macs = sum((1 - free) * cost.parameters[name].macs for name, free in outside.items())
        result[group.name] = Share(params / max(cost.params, 1), macs / max(cost.macs, 1))
    return result


class _Recorder(TorchDispatchMode):
    """Count MACs while a model runs, by the innermost running module and by the parameter that is a factor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.modules: Counter[str] = Counter()
        self.weights: Counter[str] = Counter()
        self.running = [""]
        self.shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        # The parameters behind a storage: that of a parameter, or of a tensor that is computed from parameters only.
        self.sources: dict[Any, tuple[str, ...]] = {
            parameter.untyped_storage(): (name,) for name, parameter in model.named_parameters()
        }
        self.sources |= {buffer.untyped_storage(): () for buffer in model.buffers()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.follow(args, out)
        packet = func.overloadpacket
        if packet in ALWAYS or packet in WITH_A_PARAMETER:
            # Views share the storage, so a transposed weight counts as that weight. The bias is not a factor.
            factors = args[-2:] if packet in (aten.addmm, aten.baddbmm) else args[:2]
            names = {name for factor in factors if (name := self.owner(factor))}
            if packet in ALWAYS or names:
                macs = flop_registry[packet](*args, **(kwargs or {}), out_val=out) // 2
                self.modules[self.running[-1]] += macs
                self.weights.update(dict.fromkeys(names, macs))
        return out

    def follow(self, args: Any, out: Any) -> None:
        """Record tensors that are computed from parameters and buffers only, such as a standardised weight."""
        inputs = [leaf.untyped_storage() for leaf in pytree.tree_leaves(args) if isinstance(leaf, Tensor)]
        if inputs and all(storage in self.sources for storage in inputs):
            names = tuple(dict.fromkeys(name for storage in inputs for name in self.sources[storage]))
            for leaf in pytree.tree_leaves(out):
                if isinstance(leaf, Tensor):
                    self.sources.setdefault(leaf.untyped_storage(), names)

    def owner(self, factor: Tensor) -> str | None:
        """Return the parameter that a factor is, or is computed from element by element."""
        names = self.sources.get(factor.untyped_storage(), ())
        return next((name for name in names if self.shapes[name].numel() == factor.numel()), None)

    def enter(self, name: str) -> Any:
        return lambda *_: self.running.append(name)

    def leave(self, *_: Any) -> None:
        self.running.pop()


def _macs(model: nn.Module, example: Example) -> tuple[Counter[str], Counter[str]]:
    """Run a model and return its MACs by module and by parameter."""
    args, kwargs = call_arguments(example)
    recorder = _Recorder(model)
    with ExitStack() as undo:
        for name, module in model.named_modules():
            undo.enter_context(module.register_forward_pre_hook(recorder.enter(name), prepend=True))
            undo.enter_context(module.register_forward_hook(recorder.leave, always_call=True))
        # Compiled parts run as plain Python, fused attention as single ops: both would hide the MACs.
        undo.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        with torch.inference_mode(False), torch.no_grad(), mode(model, train=False):
            with torch.compiler.set_stance("force_eager"), recorder:
                model(*args, **kwargs)
    return recorder.modules, recorder.weights


def _macs_on_meta(model: nn.Module, example: Example) -> tuple[Counter[str], Counter[str]] | None:
    """Run a copy of a model on the meta device and return its MACs; None if it cannot run there."""
    try:
        empty = meta_copy(model)
        for module in empty.modules():
            clear_forward_hooks(module)  # they are for the user's own model
        return _macs(empty, pytree.tree_map_only(Tensor, lambda tensor: tensor.to("meta"), example))
    except Exception:  # of any kind: the real forward pass reports what is wrong, if anything
        return None
