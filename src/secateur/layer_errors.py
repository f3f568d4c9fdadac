"""How far each layer of a cut network is off: against all that the original layer adds up, point by point."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from secateur.batches import Call, batch_size
from secateur.errors import SecateurError
from secateur.graph import ChannelGraph
from secateur.plan import Plan
from secateur.program import named_tensors, owner, unwrap
from secateur.sensitivity import runnable
from secateur.surgery import check_plan, example_for
from secateur.ties import Slot
from secateur.trace import trace
from secateur.watch import Read, Watch

CONVOLVE = (F.conv1d, F.conv2d, F.conv3d)


@dataclass
class LayerErrors:
    """For every layer that reads a cut group, `max |zhat - z| / (z+ + z-)` over outputs and patches, of each point.

    >>> errors = LayerErrors(model, small, plan)
    >>> f, fhat = errors.run(call, lambda network, call: network(*call[0]))
    >>> errors.found[Slot("conv2.weight", 1)]  # one number for each point so far

    zhat is from the small network, at its own inputs and weights; z, z+ and z- from the original. Biases are left out,
    but a change of the bias counts as error.
    """

    original: nn.Module
    small: nn.Module
    plan: Plan
    found: dict[Slot, list[float]] = field(default_factory=lambda: defaultdict(list))
    left_out: dict[Slot, str] = field(default_factory=dict)  # why nothing is known of a layer

    def __post_init__(self) -> None:
        inner = unwrap(self.original)
        check_plan(inner, self.plan)
        graph = trace(inner, example_for(inner, self.plan), output=self.plan.output)
        self.network, self.small = runnable(inner, graph), unwrap(self.small)
        self.units = {slot: _units(graph, slot) for slot in self.plan.reads}
        wanted: dict[str, list[Slot]] = defaultdict(list)
        for slot in self.plan.reads:
            wanted[slot.parameter].append(slot)
        self._before: dict[Slot, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        self._after: dict[Slot, list[Tensor]] = defaultdict(list)
        slots = {name: tuple(several) for name, several in wanted.items()}
        self._watches = Watch(self.network, slots, self._see_original), Watch(self.small, slots, self._see_small)
        self._tensors = named_tensors(self.network), named_tensors(self.small)

    def run(self, call: Call, forward: Callable[[nn.Module, Call], Tensor]) -> tuple[Tensor, Tensor]:
        """Run both networks on a batch, note the errors, and give their outputs."""
        self._before.clear()
        self._after.clear()
        outputs = []
        for network, watch in zip((self.network, self.small), self._watches, strict=True):
            with watch:
                outputs.append(forward(network, call))
        for slot in self.plan.reads:
            try:
                self.found[slot] += self._error(slot, batch_size(call)).tolist()
            except SecateurError as reason:
                self.left_out.setdefault(slot, reason.cause)
        return outputs[0], outputs[1]

    def _see_original(self, read: Read) -> None:
        units = self.units[read.slot].to(read.places.device)[read.places]
        total = sum(_convolved(read, units == unit).abs_() for unit in units.unique().tolist())
        assert isinstance(total, Tensor)
        self._before[read.slot].append((_convolved(read), total))

    def _see_small(self, read: Read) -> None:
        self._after[read.slot].append(_convolved(read))

    def _error(self, slot: Slot, points: int) -> Tensor:
        """The largest error of each point, over outputs, patches and calls of the layer."""
        if slot.axis > 1:
            raise SecateurError("its outputs are not one of the first two axes of its weight")
        outputs = Slot(slot.parameter, 1 - slot.axis)
        many, few = (tensors[slot.parameter].shape[outputs.axis] for tensors in self._tensors)
        kept = list(self.plan.kept.get(outputs, range(many)))
        wanted = [_calls([pair[i] for pair in self._before[slot]], many) for i in (0, 1)]
        found = _calls(self._after[slot], few)
        if not found or len(found) != len(wanted[0]):
            raise SecateurError("the two networks do not call it equally often in evaluation")
        worst = torch.zeros(points, dtype=torch.float64)
        for z, total, zhat in zip(*wanted, found, strict=True):
            z, total = z[:, kept], total[:, kept]
            if z.shape != zhat.shape or len(z) != points:
                raise SecateurError("its outputs cannot be set beside each other, point by point")
            shift = self._bias_change(slot, many, kept, z)
            difference = (zhat.to(z.device) - z + shift).abs()
            ratio = torch.where(difference > 0, difference / total, 0.0)
            worst = torch.maximum(worst, ratio.flatten(1).amax(1).double().cpu())
        return worst

    def _bias_change(self, slot: Slot, whole: int, kept: list[int], like: Tensor) -> Tensor:
        """What the small layer's bias adds beyond the original's, in the shape of its outputs."""
        name = f"{owner(slot.parameter)}.bias".removeprefix(".")
        before, after = (tensors.get(name) for tensors in self._tensors)
        if any(bias is not None and len(bias) != size for bias, size in ((before, whole), (after, len(kept)))):
            raise SecateurError("it has one bias for several groups of outputs")
        shift = torch.zeros(len(kept), dtype=like.dtype, device=like.device)
        if after is not None:
            shift = shift + after.detach().to(like)
        if before is not None:
            shift = shift - before.detach().to(like)[kept]
        return shift.view(1, -1, *[1] * (like.dim() - 2))


def _units(graph: ChannelGraph, slot: Slot) -> Tensor:
    """For every index along a slot the first index of its unit: those contribute together."""
    at = torch.arange(graph.shapes[slot.parameter][slot.axis])
    for group in graph.groups:
        if slot in group.slots:
            for indices in group.indices[group.slots.index(slot)]:
                at[list(indices)] = indices[0]
    return at


def _convolved(read: Read, which: Tensor | None = None) -> Tensor:
    """What the layer computes, from all channels or from some."""
    x, weight = (t.float() if t.dtype in (torch.float16, torch.bfloat16) else t for t in (read.x, read.weight.detach()))
    if which is not None:
        x, weight = x[:, which], weight[:, which]
    convolve: Callable[..., Tensor] = CONVOLVE[len(read.stride) - 1]
    return convolve(x, weight, None, read.stride, 0, read.dilation)


def _calls(parts: list[Tensor], outputs: int) -> list[Tensor]:
    """One tensor for each call of the layer: a grouped one comes in parts."""
    whole, open_ = list[Tensor](), list[Tensor]()
    for part in parts:
        open_.append(part)
        if sum(one.shape[1] for one in open_) == outputs:
            whole.append(torch.cat(open_, 1) if len(open_) > 1 else part)
            open_ = []
    return whole
