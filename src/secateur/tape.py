"""What a network does, call by call, and which of its layers can be fitted anew."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from secateur.batches import Call
from secateur.layers import take_apart
from secateur.ops import CONVOLUTION, call_name
from secateur.program import mode, named_tensors

ADDITIONS = ("add", "iadd", "radd")
TORCH_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
ATEN_NORM = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")


@dataclass(frozen=True)
class Norm:
    """A batch norm with fixed statistics, right behind a layer: `scale * x + shift`."""

    step: int
    tensors: dict[str, str]  # of running_mean, running_var, weight, bias those that there are
    eps: float

    def affine(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The scale and the shift of each channel, in double precision."""
        own = {key: tensors[name].detach().double() for key, name in self.tensors.items()}
        scale = (own["running_var"] + self.eps).rsqrt()
        if "weight" in own:
            scale = scale * own["weight"]
        return scale, own.get("bias", 0) - scale * own["running_mean"]

    def add(self, constant: Tensor, tensors: Mapping[str, Tensor]) -> None:
        """Let it act as if this had been added to what it reads."""
        with torch.no_grad():
            if "bias" in self.tensors:
                scale = self.affine(tensors)[0]
                tensors[self.tensors["bias"]].add_((scale * constant).to(tensors[self.tensors["bias"]].dtype))
            else:
                mean = tensors[self.tensors["running_mean"]]
                mean.sub_(constant.to(mean.dtype))


@dataclass(frozen=True)
class Site:
    """A layer that can be fitted anew, and where its effect is felt."""

    step: int  # its number among the calls of a forward pass that give a tensor
    weight: str
    bias: str | None
    norm: Norm | None = None
    sum: int | None = None  # the addition that takes what the layer (with its norm) makes, and nothing else does
    place: int = 0  # which operand of the addition that is

    @property
    def end(self) -> int:
        """The call before which everything is known that the fit needs."""
        return self.step if self.sum is None else self.sum

    @property
    def takes_constant(self) -> bool:
        """Whether a constant can be added to each output."""
        return self.bias is not None or self.norm is not None


@dataclass(frozen=True)
class Step:
    """One call that gave a tensor."""

    name: str
    reads: tuple[int, ...]  # the steps whose results it takes; -1 for a tensor from elsewhere
    tensors: dict[str, str]  # which of its arguments are tensors of the network, by name
    eps: float | None = None  # of a batch norm with fixed statistics
    layer: bool = False  # a convolution or linear layer on a batch
    adds: tuple[int, ...] = ()  # of a plain addition of two results: which of the two have the shape of the sum
    bytes: int = 0  # of what it gave


@dataclass(frozen=True)
class Tape:
    """All calls of one forward pass."""

    steps: tuple[Step, ...]
    outputs: frozenset[int]  # the steps whose results the network gives back, or puts where no step shows it

    @property
    def names(self) -> tuple[str, ...]:
        """The calls by name, in order: two networks of the same make have the same."""
        return tuple(step.name for step in self.steps)

    @property
    def peak_bytes(self) -> int:
        """The most that results still needed take up at any moment."""
        last = {number: number for number in range(len(self.steps))}
        last |= {source: number for number, step in enumerate(self.steps) for source in step.reads}
        last |= dict.fromkeys(self.outputs, len(self.steps))
        now = peak = 0
        for number, step in enumerate(self.steps):
            now += step.bytes
            peak = max(peak, now)
            done = {source for source in (*step.reads, number) if source >= 0 and last[source] == number}
            now -= sum(self.steps[source].bytes for source in done)
        return peak

    def sites(self) -> Iterator[Site]:
        """The layers that can be fitted: called once, with a weight and a bias that are nobody else's."""
        uses = Counter(name for step in self.steps for name in step.tensors.values())
        readers: dict[int, list[int]] = defaultdict(list)
        for number, step in enumerate(self.steps):
            for source in step.reads:
                readers[source].append(number)
        claimed: dict[int, int] = {}
        found = []
        for number, step in enumerate(self.steps):
            extra = len(step.reads) != 1 or any(key[0] == "#" for key in step.tensors)
            if not step.layer or extra or any(uses[name] > 1 for name in step.tensors.values()):
                continue
            norm = self._norm(number, readers, uses)
            last = norm.step if norm else number
            total = self._sum(last, readers)
            place = self.steps[total].reads.index(last) if total is not None else 0
            found.append(Site(number, step.tensors["weight"], step.tensors.get("bias"), norm, total, place))
            if total is not None:  # of two layers that are added up the later one makes good for both
                claimed[total] = number
        for site in found:
            yield (
                site
                if site.sum is None or claimed[site.sum] == site.step
                else Site(site.step, site.weight, site.bias, site.norm)
            )

    def _only_reader(self, number: int, readers: dict[int, list[int]]) -> int | None:
        at = readers[number]
        return at[0] if len(at) == 1 and number not in self.outputs else None

    def _norm(self, number: int, readers: dict[int, list[int]], uses: Counter[str]) -> Norm | None:
        after = self._only_reader(number, readers)
        step = self.steps[after] if after is not None else None
        if step is None or after is None or step.eps is None or step.reads != (number,):
            return None
        shared = any(uses[name] > 1 for name in step.tensors.values())
        return None if shared else Norm(after, step.tensors, step.eps)

    def _sum(self, number: int, readers: dict[int, list[int]]) -> int | None:
        after = self._only_reader(number, readers)
        if after is None or not self.steps[after].adds:
            return None
        reads = self.steps[after].reads
        return after if reads[0] != reads[1] and reads.index(number) in self.steps[after].adds else None


class Counting(TorchFunctionMode):
    """Numbers the calls that give a tensor, and hands each to `at` before it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = self.at(self.number, func, args, kwargs or {})
        if isinstance(result, Tensor):
            self.number += 1
        return result

    def at(self, number: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the call, or something in its place."""
        return func(*args, **kwargs)


class _Recorder(Counting):
    """Writes down every step of one forward pass."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.names = {id(tensor): name for name, tensor in named_tensors(network).items()}
        self.makers: dict[int, int] = {}
        self.held: list[Tensor] = []  # so that no other tensor takes the identity of one that is gone
        self.steps: list[Step] = []
        self.hidden: set[int] = set()  # steps whose results went to calls that are no steps: split, x[0] = y

    def at(self, number: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = call_name(func)
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        reads = tuple(self.makers.get(id(leaf), -1) for leaf in given if id(leaf) not in self.names)
        arguments = dict(zip(_argument_names(func, name), args, strict=False)) | kwargs
        tensors = {key: self.names[id(leaf)] for key, leaf in arguments.items() if id(leaf) in self.names}
        others = [self.names[id(leaf)] for leaf in given if id(leaf) in self.names]
        tensors |= {f"#{i}": other for i, other in enumerate(others) if other not in tensors.values()}
        result = func(*args, **kwargs)
        if isinstance(result, Tensor):
            fixed = name == "batch_norm" and "running_var" in tensors and not arguments.get("training", False)
            self.steps.append(
                Step(
                    name=name,
                    reads=reads,
                    tensors=tensors,
                    eps=float(arguments.get("eps", 1e-5)) if fixed else None,
                    layer="weight" in tensors and take_apart(name, args, kwargs) is not None,
                    adds=_adds(name, args, kwargs, reads, result),
                    bytes=result.nbytes,
                )
            )
            self.makers[id(result)] = number
            self.held.append(result)
        elif result is None or any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(result)):
            self.hidden.update(reads)
        return result


def record(network: nn.Module, call: Call) -> Tape:
    """Run the network once, in evaluation mode, and write down what it calls.

    >>> tape = record(model, ((images[:1],), {}))
    >>> [site.weight for site in tape.sites()]
    ['conv1.weight', 'conv2.weight', 'fc.weight']
    """
    recorder = _Recorder(network)
    args, kwargs = call
    with mode(network, False), torch.no_grad(), recorder:
        given = network(*args, **kwargs)
    outputs = {recorder.makers.get(id(leaf), -1) for leaf in pytree.tree_leaves(given)}
    return Tape(tuple(recorder.steps), frozenset((outputs | recorder.hidden) - {-1}))


def may_belong_to_a_site(name: str) -> bool:
    """Whether calls of this name are layers, norms or sums."""
    return name in ("linear", "batch_norm", *ADDITIONS) or CONVOLUTION.match(name) is not None


def _argument_names(func: Any, name: str) -> tuple[str, ...]:
    if name == "batch_norm":
        return TORCH_NORM if func is F.batch_norm else ATEN_NORM
    return ("input", "weight", "bias")


def _adds(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], reads: Sequence[int], result: Tensor
) -> tuple[int, ...]:
    if name not in ADDITIONS or len(args) != 2 or len(reads) != 2 or kwargs.get("alpha", 1) != 1:
        return ()
    return tuple(i for i, operand in enumerate(args) if operand.shape == result.shape)
