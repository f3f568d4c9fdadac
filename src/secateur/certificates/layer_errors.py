"""The error of each layer of a cut network, sample by sample, relative to all terms that the original layer adds up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce

import torch
from torch import Tensor, nn

from secateur.channels.graph import ChannelGraph
from secateur.errors import SecateurError
from secateur.network.batches import Call, batch_size
from secateur.network.examples import revive
from secateur.network.layer_calls import GroupCall, convolve
from secateur.network.modules import Slot, named_tensors, owner, unwrap
from secateur.network.observer import observe_slots
from secateur.network.precision import at_least_float32
from secateur.surgery.cut import check_plan
from secateur.surgery.plan import Plan
from secateur.surgery.rewrite import runnable
from secateur.tracing.trace import trace


@dataclass
class LayerErrors:
    """For every layer that consumes a cut group, `max |zhat - z| / (z+ + z-)` over outputs and positions, by sample.

    >>> errors = LayerErrors(model, small, plan)
    >>> f, fhat = errors.run(call, lambda network, call: network(*call[0]))
    >>> errors.found[Slot("conv2.weight", 1)]  # one number for each sample so far

    zhat is from the small network, with its own inputs and weights; z, z+ and z- are from the original. Biases are left
    out, but a change of the bias counts as error.
    """

    original: nn.Module
    small: nn.Module
    plan: Plan
    found: dict[Slot, list[float]] = field(default_factory=lambda: defaultdict(list))
    left_out: dict[Slot, str] = field(default_factory=dict)  # why the errors of a layer are not known

    def __post_init__(self) -> None:
        inner = unwrap(self.original)
        check_plan(inner, self.plan)
        graph = trace(inner, revive(self.plan.example, like=inner), output=self.plan.output)
        networks = runnable(inner, graph), unwrap(self.small)
        self.units = {slot: _units(graph, slot) for slot in self.plan.consumes}
        self._before: dict[Slot, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        self._after: dict[Slot, list[Tensor]] = defaultdict(list)
        self._observed = [
            (network, observe_slots(network, self.plan.consumes, see))
            for network, see in zip(networks, (self._see_original, self._see_small), strict=True)
        ]
        self._tensors = [named_tensors(network) for network in networks]

    def run(self, call: Call, forward: Callable[[nn.Module, Call], Tensor]) -> tuple[Tensor, Tensor]:
        """Run both networks on a batch, note the errors, and return the outputs."""
        self._before.clear()
        self._after.clear()
        outputs = []
        for network, observer in self._observed:
            with observer:
                outputs.append(forward(network, call))
        for slot in self.plan.consumes:
            try:
                self.found[slot] += self._error(slot, batch_size(call)).tolist()
            except SecateurError as reason:
                self.left_out.setdefault(slot, reason.cause)
        return outputs[0], outputs[1]

    def _see_original(self, call: GroupCall) -> None:
        units = self.units[call.slot].to(call.channels.device)[call.channels]
        total = reduce(torch.add, (_output(call, units == unit).abs_() for unit in units.unique().tolist()))
        self._before[call.slot].append((_output(call), total))

    def _see_small(self, call: GroupCall) -> None:
        self._after[call.slot].append(_output(call))

    def _error(self, slot: Slot, samples: int) -> Tensor:
        """Return the largest error of each sample, over outputs, positions and calls of the layer."""
        if slot.axis > 1:
            raise SecateurError("its outputs are not one of the first two axes of its weight")
        outputs = Slot(slot.parameter, 1 - slot.axis)
        many, few = (tensors[slot.parameter].shape[outputs.axis] for tensors in self._tensors)
        kept = list(self.plan.kept.get(outputs, range(many)))
        wanted = [_calls([pair[i] for pair in self._before[slot]], many) for i in (0, 1)]
        found = _calls(self._after[slot], few)
        if not found or len(found) != len(wanted[0]):
            raise SecateurError("the two networks do not call it equally often in evaluation")
        worst = torch.zeros(samples, dtype=torch.float64)
        for z, total, zhat in zip(*wanted, found, strict=True):
            z, total = z[:, kept], total[:, kept]
            if z.shape != zhat.shape or len(z) != samples:
                raise SecateurError("its outputs cannot be compared sample by sample")
            difference = (zhat.to(z.device) - z + self._bias_change(slot, many, kept, z)).abs()
            ratio = torch.where(difference > 0, difference / total, 0.0)
            worst = torch.maximum(worst, ratio.flatten(1).amax(1).double().cpu())
        return worst

    def _bias_change(self, slot: Slot, many: int, kept: list[int], like: Tensor) -> Tensor:
        """Return the bias of the small layer minus the original's, in the shape of its outputs."""
        name = f"{owner(slot.parameter)}.bias".removeprefix(".")
        before, after = (tensors.get(name) for tensors in self._tensors)
        if any(bias is not None and len(bias) != size for bias, size in ((before, many), (after, len(kept)))):
            raise SecateurError("it has one bias for several groups of outputs")
        shift = torch.zeros(len(kept), dtype=like.dtype, device=like.device)
        if after is not None:
            shift = shift + after.detach().to(like)
        if before is not None:
            shift = shift - before.detach().to(like)[kept]
        return shift.view(1, -1, *[1] * (like.dim() - 2))


def _units(graph: ChannelGraph, slot: Slot) -> Tensor:
    """Return for every index along a slot the first index of its unit: the channels of a unit contribute together."""
    at = torch.arange(graph.shapes[slot.parameter][slot.axis])
    for group in graph.groups:
        if slot in group.slots:
            for indices in group.indices[group.slots.index(slot)]:
                at[list(indices)] = indices[0]
    return at


def _output(call: GroupCall, which: Tensor | None = None) -> Tensor:
    """Return the output of the layer from all channels or from some."""
    x, weight = at_least_float32(call.x), at_least_float32(call.weight.detach())
    if which is not None:
        x, weight = x[:, which], weight[:, which]
    return convolve(x, weight, call.stride, call.dilation)


def _calls(parts: list[Tensor], outputs: int) -> list[Tensor]:
    """Return one tensor for each call of the layer: a grouped one comes in parts."""
    found, parts_of_call = list[Tensor](), list[Tensor]()
    for part in parts:
        parts_of_call.append(part)
        if sum(one.shape[1] for one in parts_of_call) == outputs:
            found.append(torch.cat(parts_of_call, 1))
            parts_of_call = []
    return found
