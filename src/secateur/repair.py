"""Fit the layers of a cut network anew, in closed form, so that it does again what the original did."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from secateur import rewrite
from secateur.batches import HELD, Call, Part, apart, batch_size, calls, held_of, on_device_of, seen_of, take
from secateur.curves import movement, pieces, some_places
from secateur.errors import SecateurError
from secateur.lanes import Stop, side_by_side
from secateur.layers import LayerCall
from secateur.plan import Plan
from secateur.program import duplicate, first_line, mode, named_tensors, owner, revive, unwrap
from secateur.progress import bar
from secateur.ridge import LARGEST, Dual, Fitted, Normal, wide
from secateur.surgery import check_plan, example_for, wrap_like
from secateur.tape import Site, Tape, record
from secateur.ties import Slot

BATCH = 64  # points that run together
PATCHES = 1 << 15  # rows that a fit looks at, if there are so many
TINY = 1e-3  # of the largest scale of a norm: what is scaled less is not asked to make good for others


@dataclass(frozen=True)
class LayerRepair:
    """What the repair did to one layer, on held-out points."""

    name: str
    before: float  # mean square error over mean square of what was wanted
    after: float
    kept: int  # outputs that kept their old weights, since none of the fits was better
    outputs: int


@dataclass(frozen=True)
class Repair:
    """What the repair did. Movement is how far the output is from the original's, on held-out points."""

    layers: tuple[LayerRepair, ...]
    points: int
    before: float  # movement of the network as cut
    after: float  # movement as repaired
    norms: bool  # whether the statistics of norms were estimated anew
    notes: tuple[str, ...] = ()


def repair(
    small: nn.Module,
    model: nn.Module,
    data: Any,
    plan: Plan,
    *,
    points: int | None = None,
    to_inputs: Callable[[Any], Any] | None = None,
    memory: int | None = None,
    progress: bool = False,
) -> nn.Module:
    """The cut network with its layers fitted anew, so that it gives what the original gives; both are untouched.

    >>> small = sc.repair(sc.cut(model, plan), model, images, plan)

    Layer by layer from the input on, each is fitted by least squares to what the original's layer makes, from what it
    reads in the cut network; where its result is added to a skip path, to what makes the sum right. No labels are
    used. The strength of the ridge is chosen on every fourth point, which the fit does not see; an output that no fit
    makes better there keeps its weights, and so does the whole network if its output is not nearer to the original's.

    data: a tensor (one batch) or an iterable of batches; labels beside the inputs are ignored. Never test data.
    plan: what was cut.
    points: use so many points; all of them if not given.
    memory: bytes for what both networks hold between two layers; half of what is free if not given. Points that do
        not fit into it are left out.
    """
    batches = list(calls(data, example=revive(plan.example), to_inputs=to_inputs, points=points))
    original = unwrap(model)
    if plan.output == "graph":
        check_plan(original, plan)
        original = rewrite.build(rewrite.programs_of(original, example_for(original, plan)))
    return refit(small, original, batches, plan, memory=memory, progress=progress)[0]


def refit(
    small: nn.Module,
    model: nn.Module,
    batches: Sequence[Call],
    plan: Plan,
    *,
    memory: int | None = None,
    progress: bool = False,
) -> tuple[nn.Module, Repair]:
    """As `repair`, with what it did."""
    original = unwrap(model)
    repaired = duplicate(unwrap(small))
    if sum(map(batch_size, batches)) < HELD:
        raise SecateurError(
            f"{sum(map(batch_size, batches))} points are too few", layer="data", remedy="give at least 128"
        )
    _check_plan(original, repaired, plan)
    used = pieces(batches, BATCH)
    some = take(used[0], slice(2))  # two, so that it shows what has no axis of points
    tape, whole = (_recorded(network, some) for network in (repaired, original))
    _check_alike(tape, whole, repaired)
    used, notes = _that_fit(used, (tape.peak_bytes + whole.peak_bytes) / batch_size(some), _memory(repaired, memory))
    parts = apart(used)
    sites = list(tape.sites())
    fitter = _Fitter(original, repaired, plan, sum(map(batch_size, used)))
    rows = []
    with bar("fitting layers", len(sites), progress) as advance:
        with closing(side_by_side(original, repaired, [part.batch for part in parts], sites)) as stations:
            for site, stops in stations:
                rows.append(fitter.fit(site, zip(stops, parts, strict=True)))
                advance()
    better, found = _best(unwrap(small), repaired, original, parts, tuple(rows), notes)
    return wrap_like(small, better), found


def _recorded(network: nn.Module, some: Call) -> Tape:
    try:
        return record(network, on_device_of(network, some))
    except Exception as error:
        raise SecateurError(
            f"it does not run on {batch_size(some)} points of the data: {first_line(error)}",
            layer=type(network).__name__,
            remedy="give data of the kind that the network takes, in batches of any size",
        ) from error


def _check_alike(one: Tape, other: Tape, network: nn.Module) -> None:
    if one.names != other.names:
        raise SecateurError(
            "the cut network does not make the same calls as the original, so they cannot run side by side",
            layer=type(network).__name__,
            remedy="give the network that the plan was made for; repair=False leaves the repair out",
        )


def _check_plan(original: nn.Module, small: nn.Module, plan: Plan) -> None:
    check_plan(original, plan)
    tensors = named_tensors(small)
    for slot, indices in plan.kept.items():
        found = tuple(tensors[slot.parameter].shape) if slot.parameter in tensors else None
        if found is not None and (slot.axis >= len(found) or found[slot.axis] != len(indices)):
            raise SecateurError(
                f"the plan leaves {len(indices)} along axis {slot.axis}, the network has the shape {found}",
                layer=slot.parameter,
                remedy="give the network that this plan left: sc.cut(model, plan)",
            )


def _memory(network: nn.Module, memory: int | None) -> int:
    """The bytes that may be used: half of what is free unless it is said."""
    if memory is not None:
        return memory
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0]) // 2
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (ValueError, OSError, AttributeError):
        return 1 << 30


def _that_fit(batches: list[Call], each: float, memory: int) -> tuple[list[Call], tuple[str, ...]]:
    """The batches that fit into the memory, if every point takes so much."""
    room = max(2 * HELD, int(memory / max(1, each)))
    total = sum(map(batch_size, batches))
    if total <= room:
        return batches, ()
    used, left = [], room
    for batch in batches:
        if left:
            used.append(take(batch, slice(left)))
            left -= batch_size(used[-1])
    return used, (f"the repair uses {room} of {total} points, as many as fit into {memory / 2**20:.3g} MB",)


class _Fitter:
    """Fits one layer after the other."""

    def __init__(self, original: nn.Module, repaired: nn.Module, plan: Plan, points: int) -> None:
        self.whole, self.tensors = named_tensors(original), named_tensors(repaired)
        self.plan, self.points = plan, points
        self.source = torch.Generator().manual_seed(0)

    def fit(self, site: Site, stops: Iterable[tuple[tuple[Stop, Stop], Part]]) -> LayerRepair:
        """Gather what the layer reads and should make, solve, and put the new weights in."""
        sums: Normal | Dual | None = None
        places = 0
        for (ours, theirs), part in stops:
            call, goal = theirs.call, self._goal(site, ours, theirs)
            _check_finite(site, call.input, goal)
            groups, outputs, n = call.plain(call.weight).shape
            if sums is None:
                old = call.plain(call.weight.detach()).double()
                shift = old.new_zeros(groups * outputs) if call.bias is None else call.bias.detach().double()
                weights = torch.cat([old, shift.view(groups, outputs, 1)], 2)
                sums = Normal(weights) if n <= LARGEST or groups > 1 else Dual(weights)
            if goal.shape[2] != places:
                places = goal.shape[2]
                chosen = some_places(places, max(PATCHES, 16 * n), self.points, self.source).to(goal.device)
            columns = call.columns(chosen)  # [groups, points, places, n]
            goals = goal[:, :, chosen].unflatten(1, (groups, -1)).permute(1, 0, 3, 2)
            for held, which in ((False, slice(part.seen)), (True, slice(part.seen, None))):
                if goals[:, which].numel():
                    sums.add(columns[:, which].flatten(1, 2), goals[:, which].flatten(1, 2), held)
        assert sums is not None
        found = sums.fit(site.takes_constant)
        if not found.ratio.isinf().all():
            self._put(site, call.layered(found.weight[..., :-1]), found.weight[..., -1].flatten())
        return _told(site, found)

    def _put(self, site: Site, weight: Tensor, constant: Tensor) -> None:
        with torch.no_grad():
            self.tensors[site.weight].copy_(weight)
            if site.bias is not None:
                self.tensors[site.bias].copy_(constant)
            elif site.norm is not None:
                site.norm.add(constant, self.tensors)

    def _goal(self, site: Site, ours: Stop, theirs: Stop) -> Tensor:
        """What the layer should make, [points, outputs, places]: with it the sum is as in the original."""
        assert ours.made is not None
        which = torch.tensor(_kept_outputs(self.plan, site.weight, ours.call), device=ours.made.device)
        made = wide(ours.made[:, which])
        if ours.other is None or theirs.other is None:
            return made
        gap = wide(ours.other[:, which]) - wide(theirs.other)
        if site.norm is None:
            return made + gap
        scale, shift = (value[which, None].to(made.dtype) for value in site.norm.affine(self.whole))
        own_scale, own_shift = (value[:, None].to(made.dtype) for value in site.norm.affine(self.tensors))
        tiny = own_scale.abs() <= TINY * own_scale.abs().max()
        wanted = (scale * made + shift + gap - own_shift) / own_scale.where(~tiny, torch.ones_like(own_scale))
        return wanted.where(~tiny, made)


def _kept_outputs(plan: Plan, name: str, call: LayerCall) -> Sequence[int]:
    """Which outputs of the original's layer the smaller one has."""
    inputs, outputs = call.weight.shape[:2]
    if not call.transposed:
        return plan.kept.get(Slot(name, 0), range(inputs))
    groups = sorted({i * call.groups // inputs for i in plan.kept.get(Slot(name, 0), range(inputs))})
    own = plan.kept.get(Slot(name, 1), range(outputs))  # of each group
    return [group * outputs + i for group in groups for i in own]


def _check_finite(site: Site, *tensors: Tensor) -> None:
    if not all(torch.isfinite(tensor).all() for tensor in tensors):
        raise SecateurError(
            "what it reads or makes is NaN or infinite",
            layer=owner(site.weight),
            remedy="check the inputs and the weights; half precision may be too narrow for this network",
        )


def _told(site: Site, found: Fitted) -> LayerRepair:
    energy = float(found.energy.sum()) or 1.0
    return LayerRepair(
        name=owner(site.weight),
        before=float(found.before.sum()) / energy,
        after=float(found.after.sum()) / energy,
        kept=int(found.ratio.isinf().sum()),
        outputs=found.ratio.numel(),
    )


def _best(
    small: nn.Module,
    repaired: nn.Module,
    original: nn.Module,
    parts: Sequence[Part],
    layers: tuple[LayerRepair, ...],
    notes: tuple[str, ...],
) -> tuple[nn.Module, Repair]:
    """Of the cut, the repaired and the repaired network with new norm statistics the one nearest to the original."""
    seen, held = seen_of(parts), held_of(parts)
    wanted = _outputs(original, held)
    before = _movement(small, held, wanted)
    after = _movement(repaired, held, wanted)
    found = Repair(layers, sum(batch_size(part.batch) for part in parts), before, after, norms=False, notes=notes)
    fresh = _with_new_norms(repaired, seen)
    if fresh is not None and (moved := _movement(fresh, held, wanted)) < after:
        repaired, found = fresh, replace(found, after=moved, norms=True)
    if found.after < before:
        return repaired, found
    note = "no repair made the output better on held-out points: the network is as it was cut"
    return duplicate(small), replace(found, after=before, norms=False, notes=(*notes, note))


@torch.no_grad()
def _outputs(network: nn.Module, batches: Sequence[Call]) -> list[list[Tensor]]:
    found = []
    with mode(network, False):
        for args, kwargs in (on_device_of(network, batch) for batch in batches):
            leaves = pytree.tree_leaves(network(*args, **kwargs))
            found.append([leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()])
    return found


def _movement(network: nn.Module, batches: Sequence[Call], wanted: list[list[Tensor]]) -> float:
    found = _outputs(network, batches)
    total = sum(movement(new, old) * batch_size(b) for new, old, b in zip(found, wanted, batches, strict=True))
    return total / sum(map(batch_size, batches))


@torch.no_grad()
def _with_new_norms(network: nn.Module, batches: Sequence[Call]) -> nn.Module | None:
    """A copy whose batch norms have the statistics of these points; None if it has no such norms."""
    fresh = duplicate(network)
    norms = [m for m in fresh.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    batches = [batch for batch in batches if batch_size(batch) > 1]  # a single point has no variance
    if not norms or not batches:
        return None
    momenta = [norm.momentum for norm in norms]
    with mode(fresh, False):
        for norm in norms:
            norm.reset_running_stats()
            norm.train()
            norm.momentum = None  # a plain mean over all batches
        for args, kwargs in (on_device_of(fresh, batch) for batch in batches):
            fresh(*args, **kwargs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return fresh
