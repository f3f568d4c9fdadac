"""What a network costs: parameters, multiply-accumulates (MACs) and time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

from secateur.errors import SecateurError
from secateur.graph import ChannelGraph
from secateur.program import Example, call_arguments, meta_copy, mode, unwrap

aten = torch.ops.aten
# A convolution or a two-dimensional product is a layer's work. A batched product is, too, where one factor is a
# parameter; between two activations it is attention, which no filter owns.
ALWAYS = {aten.convolution, aten._convolution, aten.cudnn_convolution, aten._slow_conv2d_forward, aten.mm, aten.addmm}
WITH_A_PARAMETER = {aten.bmm, aten.baddbmm}
HOOKS = ("_forward_hooks", "_forward_pre_hooks")


@dataclass(frozen=True)
class LayerCost:
    """Parameters and MACs of one part of a network."""

    params: int
    macs: int


@dataclass(frozen=True)
class Cost:
    """Parameters and MACs of a network, in total and by part; `print(cost)` is one line.

    `layers` goes by module: the parameters it holds itself and the MACs run while it is the innermost module.
    `parameters` goes by tensor: its elements and the MACs of the convolutions and products it is a factor of.
    A tensor that several layers share counts once, under its first name; a layer called twice does its MACs twice.
    """

    params: int
    macs: int
    layers: Mapping[str, LayerCost]
    parameters: Mapping[str, LayerCost]

    def __str__(self) -> str:
        return f"{magnitude(self.params)} parameters, {magnitude(self.macs)} MACs"


@dataclass(frozen=True)
class Latency:
    """Time of one forward pass in milliseconds: the median and the quartiles of `runs` passes."""

    median_ms: float
    q25_ms: float
    q75_ms: float
    runs: int
    threads: int

    @classmethod
    def of(cls, seconds: Sequence[float], threads: int) -> Latency:
        """Sum up the times of single passes.

        >>> Latency.of([0.0412, 0.0409, 0.0415], threads=1).median_ms
        41.2
        """
        q25, median, q75 = np.percentile(np.array(seconds) * 1e3, [25, 50, 75])
        return cls(float(median), float(q25), float(q75), len(seconds), threads)

    def __str__(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        median, q25, q75 = (
            f"{ms:.0f}" if ms >= 100 else f"{ms:.3g}" for ms in (self.median_ms, self.q25_ms, self.q75_ms)
        )
        return f"{median} ms ({q25} to {q75}, {self.runs} runs, {threads})"


@dataclass(frozen=True)
class Share:
    """The part of a network that lies in one group's channels, as fractions between 0 and 1."""

    params: float
    macs: float


def cost(model: nn.Module, example: Example) -> Cost:
    """Count the parameters of `model` and the MACs of its convolutions and linear layers on `example`.

    >>> print(cost(torchvision.models.resnet18(), torch.zeros(1, 3, 224, 224)))
    11.69 M parameters, 1.814 G MACs

    `example` is a tensor, a tuple of arguments or a dict of keyword arguments. The forward pass runs in eval mode on
    a copy without data (the meta device), so it takes neither time nor memory; only a network that looks at the
    values of its tensors is run for real.
    """
    model = unwrap(model)
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise SecateurError("the parameter has no shape yet", layer=name, remedy="run one forward pass first")
    with _explained(example):
        modules, weights = _macs_without_data(model, example) or _macs(model, example)

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


def latency(
    model: nn.Module, example: Example, *, runs: int = 30, warmup: int = 5, threads: int | None = None
) -> Latency:
    """Time the forward pass of `model` on `example`, in eval mode and without gradients.

    >>> print(latency(model, torch.zeros(1, 3, 224, 224), threads=1))
    41.2 ms (41 to 41.9, 30 runs, 1 thread)

    `threads` is the number of CPU threads, torch's own setting unless given. That setting and the train/eval mode of
    every module are put back afterwards.
    """
    if runs < 1 or warmup < 0 or (threads is not None and threads < 1):
        raise SecateurError(
            f"cannot time {runs} runs after {warmup} warm-up runs on {threads} threads",
            remedy="give runs >= 1, warmup >= 0 and threads >= 1",
        )
    times = []
    with use_threads(threads) as used, forward_pass(model, example) as run:
        for _ in range(warmup + runs):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
    return Latency.of(times[warmup:], used)


@contextmanager
def use_threads(threads: int | None) -> Iterator[int]:
    """Let torch work with so many CPU threads for a while, or with as many as it does; gives that number."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads or before)
        yield threads or before
    finally:
        torch.set_num_threads(before)


@contextmanager
def forward_pass(model: nn.Module, example: Example) -> Iterator[Callable[[], Any]]:
    """A call that runs one pass to its end, in eval mode and without gradients, and gives the outputs.

    >>> with forward_pass(model, torch.zeros(1, 3, 224, 224)) as run:
    ...     run()
    """
    args, kwargs = call_arguments(example)
    # Work on an accelerator is only queued when the call returns: wait for it.
    queued = any(tensor.device.type not in ("cpu", "meta") for tensor in model.parameters())

    def run() -> Any:
        with _explained(example):
            outputs = model(*args, **kwargs)
            if queued:
                torch.accelerator.synchronize()
        return outputs

    with torch.no_grad(), mode(model, train=False):
        yield run


def shares(graph: ChannelGraph, cost: Cost) -> dict[str, Share]:
    """Tell, by group name, which fraction of all parameters and MACs lies in the channels of each group.

    >>> shares(trace(model, example), cost(model, example))["layer1.0.conv1"]
    Share(params=0.0063, macs=0.127)

    A weight between two groups lies in both, so the fractions of all groups may add up to more than one.
    """
    result = {}
    for group in graph.groups:
        # The elements outside the group form a box: along each axis, the positions it does not hold.
        outside: dict[str, float] = {}
        for slot, units in zip(group.slots, group.indices, strict=True):
            if slot.parameter not in cost.parameters:
                continue  # a buffer
            positions = {position for unit in units for position in unit}
            free = 1 - len(positions) / graph.shapes[slot.parameter][slot.axis]
            outside[slot.parameter] = outside.get(slot.parameter, 1.0) * free
        params = sum((1 - free) * cost.parameters[name].params for name, free in outside.items())
        macs = sum((1 - free) * cost.parameters[name].macs for name, free in outside.items())
        result[group.name] = Share(params / max(cost.params, 1), macs / max(cost.macs, 1))
    return result


def magnitude(number: float) -> str:
    """Write a count the way people say it: four digits and a unit.

    >>> magnitude(11_689_512)
    '11.69 M'
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.4g} {unit}"
    return f"{number:.0f}"


class _Recorder(TorchDispatchMode):
    """Counts MACs while a model runs, by the innermost module at work and by the parameter that is a factor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.modules: Counter[str] = Counter()
        self.weights: Counter[str] = Counter()
        self.running = [""]
        self.shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        # Whose tensor a storage is: a parameter's own, or one that forward computes from parameters alone.
        self.sources: dict[Any, tuple[str, ...]] = {
            parameter.untyped_storage(): (name,) for name, parameter in model.named_parameters()
        }
        self.sources |= {buffer.untyped_storage(): () for buffer in model.buffers()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.follow(args, out)
        packet = func.overloadpacket
        if packet in ALWAYS or packet in WITH_A_PARAMETER:
            # Views share the storage, so a transposed weight is still that weight. The bias is not a factor.
            factors = args[-2:] if packet in (aten.addmm, aten.baddbmm) else args[:2]
            names = {name for factor in factors if (name := self.owner(factor))}
            if packet in ALWAYS or names:
                macs = flop_registry[packet](*args, **(kwargs or {}), out_val=out) // 2
                self.modules[self.running[-1]] += macs
                self.weights.update(dict.fromkeys(names, macs))
        return out

    def follow(self, args: Any, out: Any) -> None:
        """Note what is computed from parameters and buffers alone: a standardised or normed weight."""
        inputs = [leaf.untyped_storage() for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
        if inputs and all(storage in self.sources for storage in inputs):
            names = tuple(dict.fromkeys(name for storage in inputs for name in self.sources[storage]))
            for leaf in tree_leaves(out):
                if isinstance(leaf, Tensor):
                    self.sources.setdefault(leaf.untyped_storage(), names)

    def owner(self, factor: Tensor) -> str | None:
        """The parameter that a factor is, or is computed from element by element."""
        names = self.sources.get(factor.untyped_storage(), ())
        return next((name for name in names if self.shapes[name].numel() == factor.numel()), None)

    def enter(self, name: str) -> Any:
        return lambda *_: self.running.append(name)

    def leave(self, *_: Any) -> None:
        self.running.pop()


def _macs(model: nn.Module, example: Example) -> tuple[Counter[str], Counter[str]]:
    """Run `model` as it stands; give the MACs by module and by parameter."""
    args, kwargs = call_arguments(example)
    recorder = _Recorder(model)
    handles: list[Any] = []
    try:
        for name, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(recorder.enter(name), prepend=True))
            handles.append(module.register_forward_hook(recorder.leave, always_call=True))
        # Compiled parts run as plain Python here, fused attention as its single operations: both would hide the work.
        with torch.inference_mode(False), torch.no_grad(), mode(model, train=False), _no_fast_attention():
            with torch.compiler.set_stance("force_eager"), recorder:
                model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return recorder.modules, recorder.weights


def _macs_without_data(model: nn.Module, example: Example) -> tuple[Counter[str], Counter[str]] | None:
    """Run a copy of `model` on the meta device, or give None where that cannot be done."""
    try:
        empty = meta_copy(model)
        for module in empty.modules():
            for hooks in HOOKS:  # they belong to the user's model, and may keep what they see
                getattr(module, hooks).clear()
        return _macs(empty, tree_map_only(Tensor, lambda tensor: tensor.to("meta"), example))
    except Exception:  # anything at all: the real forward pass says what is wrong, if something is
        return None


@contextmanager
def _no_fast_attention() -> Iterator[None]:
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


@contextmanager
def _explained(example: Example) -> Iterator[None]:
    """Turn a failure of the model's own forward pass into an error that shows the example's shapes."""
    try:
        yield
    except Exception as error:
        shapes = tree_map_only(Tensor, lambda tensor: tuple(tensor.shape), example)
        raise SecateurError(
            f"the model fails on an example of shape {shapes}: {type(error).__name__}: {error}",
            remedy="give an example that model(example) accepts",
        ) from error
