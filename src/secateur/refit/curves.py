"""Divergence curves: in which order the units of a group are removed, and how far the output diverges after each.

Two passes over the calibration data: one for the second moments of the input of every consumer and, on some of the
samples, the Fisher weight of each of its outputs; and one for the output divergence when half of a group or most of it
is removed and its consumers are refitted (refit/trials.py). The last one sets the scale of the curves, so that groups
can be compared. It uses samples that the other does not: a layer with more inputs than there are samples can be fitted
to those without error, whatever is removed. Where memory is short, batches are smaller, and the groups are measured in
portions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from secateur.channels.graph import ChannelGraph, Group
from secateur.errors import SecateurError
from secateur.network.batches import (
    Call,
    count_samples,
    first_batches,
    fitted_samples,
    float_outputs,
    held_out_samples,
    hold_out,
    split,
    take,
)
from secateur.network.footprint import batch_that_fits
from secateur.network.layer_calls import FunctionCall, LayerCall
from secateur.network.memory import free_memory, megabytes, room
from secateur.network.modules import Slot, device_of, mode, owner
from secateur.network.observer import LayerObserver
from secateur.network.precision import at_least_float32, check_all_finite
from secateur.network.processes import batch_source, copy_from_first, own_share, reduce_over_all
from secateur.progress import bar
from secateur.refit.elimination import Consumer, Order, SeparateErrors, eliminate
from secateur.refit.fisher import SAMPLES as FISHER_SAMPLES
from secateur.refit.fisher import Act, fisher_weights
from secateur.refit.least_squares import LARGEST, add_patches, add_squares, factor, sample_positions
from secateur.refit.pending import MOST, Pending
from secateur.refit.shifts import Windows
from secateur.refit.trials import CACHE, CHECKS, Measured, Refit, Trials, divergences
from secateur.stages import stage

ROWS = 1 << 13  # rows for second moments, or eight for each input if those are more
MAPS = 256  # feature maps of which all rows are used, or more if there are too few rows in them
ROWS_BY_UNIT = 512  # rows for the contribution of each unit by itself, where a layer has more than LARGEST inputs
RIDGE = 1e-3  # of the mean square of the inputs
FRACTIONS = (0.5, 0.85)  # of a group that are removed in its trials
COPIES = 4  # arrays as large as the second moments of a layer, that its elimination holds


@dataclass(frozen=True)
class Curve:
    """How a group shrinks: the order of removal of its units, and the divergence after 0, 1, 2, ... are removed."""

    removed: tuple[int, ...]
    divergence: Tensor  # float64, rising from 0


def curves(
    network: nn.Module,
    graph: ChannelGraph,
    batches: Sequence[Call],
    kept: Mapping[str, Sequence[int]],
    *,
    seed: int = 0,
    memory: int | None = None,
    checks: int = CHECKS,
    progress: bool = False,
) -> dict[str, Curve]:
    """Return the curve of every prunable group that some layer consumes.

    >>> curves(model, graph, [((images,), {})], {"conv1": range(20)})["conv1"].removed[:3]
    (17, 4, 11)

    Args:
        kept: for each group the units that are left; the curves count among those.
        memory: bytes for temporary arrays; if not given, half of the free memory, and no more than 1.5 GB.
        checks: cuts that are tried by running the network with them; the other ones are estimated.
    """
    orders: dict[str, Order] = {}
    measured: dict[tuple[str, int], Measured] = {}
    with mode(network, False):
        study = _Study(network, graph, batches, seed, room(memory, device_of(network)))
        portions = study.portions(kept)
        for portion in portions:
            refits: dict[tuple[str, int], Refit] = {}
            with bar("measuring channels", len(portion) + 1, progress) as advance:
                study.measure(portion, fisher=portion is portions[0])
                advance()
                for group in portion:
                    units = kept[group.name]
                    with stage("elimination"):
                        order = orders[group.name] = _agreed(eliminate(study.consumers(group, units), RIDGE))
                    with stage("refits for trials"):
                        for count in _removals(units):
                            removed = [units[i] for i in order.removed[:count]]
                            refits[group.name, count] = study.refitted(group, removed)
                    advance()
            study.forget_moments()
            measured |= study.trials(progress).measure(refits, checks=checks)
    found = divergences(measured)
    return {
        name: scaled(order, {count: one for (group, count), one in found.items() if group == name})
        for name, order in orders.items()
    }


def _agreed(order: Order) -> Order:
    """Return the order that the first process found, so that all of them remove the same units."""
    removed = torch.tensor(order.removed)
    copy_from_first([removed, order.errors])
    return Order(tuple(removed.tolist()), order.errors)


def _removals(units: Sequence[int]) -> list[int]:
    """Return how many units the trials of a group remove."""
    return sorted({max(1, int(fraction * len(units))) for fraction in FRACTIONS})


def scaled(order: Order, divergences: Mapping[int, float]) -> Curve:
    """Return the curve through the divergences of the trials; between and beyond them it follows the errors.

    >>> scaled(Order((2, 0, 1), torch.tensor([0.0, 1.0, 4.0])), {1: 10.0}).divergence
    tensor([ 0., 10., 40.])
    """
    errors = order.errors.numpy()
    ratios = {
        count: divergence / errors[count]
        for count, divergence in divergences.items()
        if errors[count] > 0 and 0 < divergence < math.inf
    }
    if not ratios:
        return Curve(order.removed, order.errors)
    scale = np.exp(np.interp(np.arange(len(errors)), list(ratios), np.log(list(ratios.values()))))
    return Curve(order.removed, torch.from_numpy(np.maximum.accumulate(errors * scale)))


@dataclass
class _UnitOutputs:
    """Over all rows, the sums and the sums of squares of what each unit of a group adds to each output."""

    sums: Tensor  # [outputs, units]
    squares: Tensor
    rows: int = 0

    @property
    def mean(self) -> Tensor:
        return self.sums / self.rows

    @property
    def variance(self) -> Tensor:
        """The error of removing a unit when a constant replaces its mean."""
        return (self.squares / self.rows - self.mean.square()).clamp_min(0)


@dataclass
class _Layer:
    """The measurements of one layer that consumes prunable groups."""

    call: LayerCall  # an example, with a single sample
    grams: list[Tensor] = field(default_factory=list)  # sums of x x' over rows [x, 1], for each group of the layer
    rows: int = 0
    pending: Pending = field(default_factory=Pending)
    by_unit: dict[str, _UnitOutputs] = field(default_factory=dict)  # instead, if it has too many inputs
    fisher: Tensor | None = None  # [outputs], per sample the sum over positions of the squared gradient

    def begin(self, groups: Sequence[Group], waiting: int) -> None:
        """Set the sums to zero, for the groups that are measured.

        Args:
            waiting: bytes that may wait to be added.
        """
        self.pending = Pending(min(MOST, waiting))
        call, device = self.call, self.call.input.device
        self.grams, self.by_unit, self.rows = [], {}, 0
        if not _is_large(call):
            size, kind = call.as_matrix(call.weight).shape[2] + 1, at_least_float32(call.input).dtype
            self.grams = [torch.zeros(size, size, dtype=kind, device=device) for _ in range(call.groups)]
            return
        for group in groups:
            if any(slot.parameter == call.name for slot in group.consumes):
                zeros = torch.zeros(2, call.outputs, group.size, dtype=torch.float64, device=device)
                self.by_unit[group.name] = _UnitOutputs(*zeros)

    def put(self, windows: Windows | None, rows: int, x: Tensor) -> None:
        """Add maps [samples, channels, *space] with these windows, or rows [groups, rows, inputs]."""
        self.rows += rows
        if self.pending.kind != windows:
            self._add_pending()
            self.pending.kind = windows
        if self.pending.put(rows, len(self.grams[0]), x):
            self._add_pending()

    def _add_pending(self) -> None:
        windows = self.pending.kind
        if not self.pending.parts:
            return
        if isinstance(windows, Windows):
            add_patches(self.grams[0], windows, *self.pending.take(dim=0))
            return
        for gram, part in zip(self.grams, *self.pending.take(dim=1), strict=True):
            add_squares(gram, part)

    def add_over_processes(self) -> None:
        """Replace the sums by those over the samples of all processes; a layer that never ran has none."""
        self._add_pending()
        counts = torch.tensor([self.rows, *(one.rows for one in self.by_unit.values())])
        sums = [tensor for one in self.by_unit.values() for tensor in (one.sums, one.squares)]
        for total in (counts, *self.grams, *sums):
            reduce_over_all(total, "sum")
        self.rows, *rows = counts.tolist()
        for one, count in zip(self.by_unit.values(), rows, strict=True):
            one.rows = count
        if not self.rows:
            self.grams = []
        self.by_unit = {name: one for name, one in self.by_unit.items() if one.rows}

    @property
    def bytes(self) -> int:
        """Of its second moments and of its refitted weights."""
        groups, outputs, n = self.call.as_matrix(self.call.weight).shape
        kind = at_least_float32(self.call.input).element_size()
        moments = 0 if _is_large(self.call) else groups * (n + 1) ** 2 * kind
        return moments + len(FRACTIONS) * groups * outputs * n * self.call.weight.element_size()

    @property
    def working_bytes(self) -> int:
        """Of the arrays that the elimination takes beside them."""
        if _is_large(self.call):
            return 0
        size = self.call.as_matrix(self.call.weight).shape[2] + 1
        return COPIES * size**2 * at_least_float32(self.call.input).element_size()


Units = tuple[tuple[int, ...], ...]  # for each unit its indices along a slot


class _Study:
    """The measurements of all layers that consume prunable groups."""

    def __init__(
        self, network: nn.Module, graph: ChannelGraph, batches: Sequence[Call], seed: int, memory: int
    ) -> None:
        size = batch_that_fits(network, batches[0], memory // 2, backward=True)  # gradients take the rest
        parts = hold_out(split(batches, size))
        self.network, self.graph, self.seed, self.memory = network, graph, seed, memory
        self.batches = fitted_samples(parts)
        self.held_out = held_out_samples(parts) or self.batches
        self.samples = count_samples(self.batches)
        self.layers = self._consuming_layers()
        self.groups: Sequence[Group] = ()  # whose moments are measured

    @torch.no_grad()
    def _consuming_layers(self) -> dict[str, _Layer]:
        """Return the layers that consume prunable groups, without measurements, from a run on one sample."""
        wanted = {slot.parameter for group in self.graph.prunable for slot in group.consumes}
        layers: dict[str, _Layer] = {}

        def act(layer: LayerCall, call: FunctionCall) -> Tensor:
            if layer.name in wanted and not (_is_large(layer) and layer.groups > 1):
                layers.setdefault(layer.name, _Layer(replace(layer, input=layer.input[:1])))
            return call.run()

        self._run(take(self.batches[0], slice(1)), act)
        return layers

    def portions(self, kept: Mapping[str, Sequence[int]]) -> list[list[Group]]:
        """Return the groups that have a curve, in portions whose moments and refits fit into the memory."""
        found: list[list[Group]] = []
        total = working = 0
        for group in self.graph.prunable:
            layers = [layer for layer, _ in self._consumers(group)]
            if not layers or len(kept[group.name]) < 2:
                continue
            size = sum(layer.bytes for layer in layers)
            own = max(layer.working_bytes for layer in layers)
            if not found or total + size + max(working, own) > self.memory:
                found.append([])
                total = working = 0
            found[-1].append(group)
            total, working = total + size, max(working, own)
        self._check_memory([layer for portion in found for group in portion for layer, _ in self._consumers(group)])
        return found

    def _check_memory(self, layers: Sequence[_Layer]) -> None:
        """Raise an error if the second moments of a layer alone take more memory than there is."""
        most = max(layers, key=lambda layer: layer.bytes + layer.working_bytes, default=None)
        needed = 0 if most is None else most.bytes + most.working_bytes
        free = free_memory(device_of(self.network))
        if most is not None and needed > free:
            name, inputs = owner(most.call.name), most.call.as_matrix(most.call.weight).shape[2]
            raise SecateurError(
                f"the second moments of the {inputs:,} inputs of {name} and their inverse take about "
                f"{megabytes(needed)}, and this process may use {megabytes(free)} more",
                layer="memory",
                remedy=f"allow more memory, keep the channels that {name} consumes (keep=; on the command line "
                "--keep), or use a method without second moments (pfp, ft)",
            )

    def _run(self, batch: Call, act: Act) -> list[Tensor]:
        def at(layer: LayerCall, call: FunctionCall) -> Tensor:
            return act(layer, call) if layer.refittable else call.run()

        with LayerObserver(self.network, at):
            return float_outputs(self.network, batch)

    def measure(self, groups: Sequence[Group], *, fisher: bool) -> None:
        """Run once over the data and sum up the second moments of the inputs of all consumers of these groups.

        Args:
            fisher: whether to measure the Fisher weights of all layers on some of the samples as well.
        """
        self.groups = groups
        wanted = {slot.parameter for group in groups for slot in group.consumes} & self.layers.keys()

        def adding(number: int) -> Act:
            source = batch_source(self.seed, number)

            def act(layer: LayerCall, call: FunctionCall) -> Tensor:
                if layer.name in wanted:
                    with torch.no_grad():
                        self._add(layer, source)
                output: Tensor = call.run()
                return output

            return act

        for name in wanted:
            self.layers[name].begin(groups, self.memory // (4 * len(wanted)))
        first = len(first_batches(self.batches, FISHER_SAMPLES)) if fisher else 0
        with stage("moments and Fisher weights"):
            outputs = {name: layer.call.outputs for name, layer in self.layers.items()}
            device = device_of(self.network)
            found = fisher_weights(self._run, self.batches[:first], outputs, self.seed, adding, device)
            for name, one in found.items():
                self.layers[name].fisher = one
        with stage("moments"), torch.no_grad():
            for number in own_share(range(first, len(self.batches))):
                self._run(self.batches[number], adding(number))
            for name in sorted(wanted):
                self.layers[name].add_over_processes()
        for name, layer in self.layers.items():
            for gram in layer.grams:
                check_all_finite(gram, "the second moments of its input", layer=owner(name))

    def forget_moments(self) -> None:
        """Free the memory of the moments."""
        for layer in self.layers.values():
            layer.grams, layer.by_unit, layer.rows = [], {}, 0

    def _add(self, call: LayerCall, source: torch.Generator) -> None:
        n, device = call.as_matrix(call.weight).shape[2], call.input.device
        layer, large = self.layers[call.name], _is_large(call)
        rows = ROWS_BY_UNIT if large else max(ROWS, 8 * n)
        windows = None if large else Windows.of(call)
        maps = min(self.samples, max(MAPS, math.ceil(rows / math.prod(call.positions))))
        most = self.samples * math.prod(call.positions)
        if windows is not None and windows.saves(maps, min(rows, most), call.input.shape[1], len(self.batches)):
            x = call.input[: math.ceil(len(call.input) * maps / self.samples)]
            layer.put(windows, len(x) * math.prod(windows.positions), at_least_float32(x))
            return
        chosen = sample_positions(math.prod(call.positions), rows, self.samples, source).to(device)
        columns = call.columns(chosen)  # [groups, samples, positions, n]
        if large:
            self._add_units(layer, call, at_least_float32(columns[0].flatten(0, 1)))
            return
        layer.put(None, len(call.input) * len(chosen), at_least_float32(columns.flatten(1, 2)))

    def _add_units(self, layer: _Layer, call: LayerCall, columns: Tensor) -> None:
        weight = at_least_float32(call.as_matrix(call.weight.detach())[0])
        for group in self.groups:
            for slot, indices in _consumed(group):
                if slot.parameter != call.name:
                    continue
                outputs = layer.by_unit[group.name]
                for unit, own in enumerate(indices):
                    at = torch.tensor(_inputs_of(call, own, 0), device=weight.device)
                    added = (columns[:, at] @ weight[:, at].T).double()  # [rows, outputs]
                    outputs.sums[:, unit] += added.sum(0)
                    outputs.squares[:, unit] += added.square().sum(0)
                outputs.rows += len(columns)

    def _consumers(self, group: Group) -> Iterator[tuple[_Layer, Units]]:
        """Return the measured layers that consume a group, with the indices of its units along their input axis."""
        for slot, indices in _consumed(group):
            if slot.parameter in self.layers:
                yield self.layers[slot.parameter], indices

    def consumers(self, group: Group, units: Sequence[int]) -> list[Consumer | SeparateErrors]:
        """Return the layers that consume a group, as the elimination takes them."""
        found: list[Consumer | SeparateErrors] = []
        for layer, indices in self._consumers(group):
            call = layer.call
            scale = torch.ones(call.outputs) if layer.fisher is None else layer.fisher.sqrt()
            if group.name in layer.by_unit:
                errors = (layer.by_unit[group.name].variance * scale.square()[:, None]).sum(0)
                found.append(SeparateErrors(errors[list(units)]))
            if not layer.grams:
                continue
            weights = _with_constant(call) * scale.view(call.groups, -1, 1)
            for k, gram in enumerate(layer.grams):
                inputs = tuple(_inputs_of(call, indices[unit], k) for unit in units)
                found.append(Consumer(gram, weights[k], inputs, layer.rows))
        return found

    def refitted(self, group: Group, removed: Sequence[int]) -> Refit:
        """Return for every consumer its weight refitted without the removed units, and a constant for each output."""
        found = {}
        for layer, indices in self._consumers(group):
            call, matrix = layer.call, _with_constant(layer.call)
            if group.name in layer.by_unit:
                for unit in removed:
                    matrix[0, :, list(_inputs_of(call, indices[unit], 0))] = 0
                    matrix[0, :, -1] += layer.by_unit[group.name].mean[:, unit]
            for k, gram in enumerate(layer.grams):
                stays = torch.ones(len(gram), dtype=torch.bool)
                for unit in removed:
                    stays[list(_inputs_of(call, indices[unit], k))] = False
                some = gram[:, stays].double() / layer.rows
                inner = some[stays]
                ridge = RIDGE * inner.diagonal().mean()
                inner.diagonal().add_(ridge if ridge > 0 else 1.0)
                goal = matrix[k] @ some + ridge * matrix[k][:, stays]
                matrix[k, :, stays] = torch.cholesky_solve(goal.T, factor(inner)).T
                matrix[k, :, ~stays] = 0
            weight, constant = call.from_matrix(matrix[..., :-1]), matrix[..., -1].flatten()
            found[call.name] = weight.to(call.weight.dtype), constant.to(call.weight.dtype)
        return found

    def trials(self, progress: bool) -> Trials:
        """Return the trials on the samples that are held out."""
        memory = min(CACHE, self.memory // 2)
        return Trials(self._run, self.held_out, seed=self.seed, memory=memory, progress=progress)


def _consumed(group: Group) -> list[tuple[Slot, Units]]:
    """Return the slots along which layers consume a group, with the indices of its units."""
    return [(slot, at) for slot, at in zip(group.slots, group.indices, strict=True) if slot in group.consumes]


def _is_large(call: LayerCall) -> bool:
    return call.as_matrix(call.weight).shape[2] > LARGEST


def _with_constant(call: LayerCall) -> Tensor:
    """Return the weight of a layer as a matrix with a column for the constant, in double precision."""
    return F.pad(call.as_matrix(call.weight.detach()).double(), (0, 1))


def _inputs_of(call: LayerCall, indices: Sequence[int], group: int) -> tuple[int, ...]:
    """Return the inputs that a unit has among those of one group of a layer, from its indices along the weight."""
    kernel = math.prod(call.kernel)
    if call.transposed and call.groups > 1:
        own = call.weight.shape[0] // call.groups
        indices = [i - group * own for i in indices if group * own <= i < (group + 1) * own]
    return tuple(i * kernel + tap for i in indices for tap in range(kernel))
