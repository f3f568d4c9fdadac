"""Divergence curves: in which order the units of a group are removed, and how far the output diverges after each.

Three passes over the calibration data: the second moments of the input of every consumer; the Fisher weight of each of
its outputs; and, group by group, the output divergence when half of the group or most of it is removed and its
consumers are refitted. The last one sets the scale of the curves, so that groups can be compared. It uses samples that
the others do not: a layer with more inputs than there are samples can be fitted to those without error, whatever is
removed. Where memory is short, batches are smaller, and the groups are measured in portions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from secateur.channels.graph import ChannelGraph, Group
from secateur.network.batches import (
    BATCH,
    Call,
    batch_size,
    count_samples,
    fitted_samples,
    float_outputs,
    held_out_samples,
    hold_out,
    split,
    take,
)
from secateur.network.divergence import output_divergence
from secateur.network.footprint import batch_that_fits
from secateur.network.layer_calls import FunctionCall, LayerCall
from secateur.network.memory import room
from secateur.network.modules import Slot, device_of, mode, owner
from secateur.network.observer import LayerObserver
from secateur.network.precision import at_least_float32, check_all_finite
from secateur.progress import bar
from secateur.refit.elimination import Consumer, Order, SeparateErrors, eliminate
from secateur.refit.fisher import Act, fisher_weights
from secateur.refit.least_squares import LARGEST, ROWS, add_squares, sample_positions

ROWS_BY_UNIT = 512  # rows for the contribution of each unit by itself, where a layer has more than LARGEST inputs
RIDGE = 1e-3  # of the mean square of the inputs
TRIAL_SAMPLES = 128  # for the trials of each group, or more,
PASSES = 8  # as long as all trials together run over at most this many times the samples of the moments
FRACTIONS = (0.5, 0.85)  # of a group that are removed in its trials
COPIES = 2  # arrays as large as the second moments of a layer that its elimination holds at a time
CACHE = 1 << 30  # bytes of layer outputs that may be kept from one trial to the next


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
    progress: bool = False,
) -> dict[str, Curve]:
    """Return the curve of every prunable group that some layer consumes.

    >>> curves(model, graph, [((images,), {})], {"conv1": range(20)})["conv1"].removed[:3]
    (17, 4, 11)

    Args:
        kept: for each group the units that are left; the curves count among those.
        memory: bytes for temporary arrays; half of the free memory if not given.
    """
    orders: dict[str, Order] = {}
    divergences: dict[tuple[str, int], float] = {}
    with mode(network, False):
        study = _Study(network, graph, batches, seed, room(memory, device_of(network)))
        portions = study.portions(kept)
        trials = sum(len(_removals(kept[group.name])) for portion in portions for group in portion)
        for portion in portions:
            refits: dict[tuple[str, int], _Refit] = {}
            with bar("measuring channels", len(portion) + 1, progress) as advance:
                study.measure_moments(portion)
                if portion is portions[0]:
                    study.measure_fisher_weights()
                advance()
                for group in portion:
                    units = kept[group.name]
                    order = orders[group.name] = eliminate(study.consumers(group, units), RIDGE)
                    for count in _removals(units):
                        refits[group.name, count] = study.refitted(group, [units[i] for i in order.removed[:count]])
                    advance()
            study.forget_moments()
            found = study.divergences(list(refits.values()), trials, progress)
            divergences |= dict(zip(refits, found, strict=True))
    return {
        name: scaled(order, {count: divergence for (group, count), divergence in divergences.items() if group == name})
        for name, order in orders.items()
    }


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
    by_unit: dict[str, _UnitOutputs] = field(default_factory=dict)  # instead, if it has too many inputs
    fisher: Tensor | None = None  # [outputs], per sample the sum over positions of the squared gradient

    @property
    def bytes(self) -> int:
        """Of its second moments, of the arrays of the same size that their use takes, and of its refitted weights."""
        groups, outputs, n = self.call.as_matrix(self.call.weight).shape
        moments = 0 if _is_large(self.call) else (groups + COPIES) * (n + 1) ** 2 * 8
        return moments + len(FRACTIONS) * groups * outputs * n * self.call.weight.element_size()


Units = tuple[tuple[int, ...], ...]  # for each unit its indices along a slot
_Refit = dict[str, tuple[Tensor, Tensor]]  # for layers by their weight: another weight, and a constant for each output


class _Study:
    """The measurements of all layers that consume prunable groups."""

    def __init__(
        self, network: nn.Module, graph: ChannelGraph, batches: Sequence[Call], seed: int, memory: int
    ) -> None:
        size = batch_that_fits(network, batches[0], memory, backward=True)
        parts = hold_out(split(batches, size))
        self.network, self.graph, self.seed, self.memory = network, graph, seed, memory
        self.batches = fitted_samples(parts)
        self.held_out = held_out_samples(parts) or self.batches
        self.samples = count_samples(self.batches)
        self.layers = self._consuming_layers()
        self.groups: Sequence[Group] = ()  # whose moments are measured
        self.bytes_each = 0.0  # of the outputs of all layers for a sample

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
        """Return the groups that have a curve, in portions whose moments and refits fit into half of the memory."""
        found: list[list[Group]] = []
        left = 0
        for group in self.graph.prunable:
            layers = [layer for layer, _ in self._consumers(group)]
            if not layers or len(kept[group.name]) < 2:
                continue
            size = sum(layer.bytes for layer in layers)
            if not found or size > left:
                found.append([])
                left = self.memory // 2
            found[-1].append(group)
            left -= size
        return found

    def _run(self, batch: Call, act: Act) -> list[Tensor]:
        def at(layer: LayerCall, call: FunctionCall) -> Tensor:
            return act(layer, call) if layer.refittable else call.run()

        with LayerObserver(self.network, at):
            return float_outputs(self.network, batch)

    @torch.no_grad()
    def measure_moments(self, groups: Sequence[Group]) -> None:
        """Run once over the data and sum up the second moments of the inputs of all consumers of these groups."""
        source = torch.Generator().manual_seed(self.seed)
        self.groups, self.bytes_each = groups, 0.0
        wanted = {slot.parameter for group in groups for slot in group.consumes} & self.layers.keys()

        def act(layer: LayerCall, call: FunctionCall) -> Tensor:
            if layer.name in wanted:
                self._add(layer, source)
            output: Tensor = call.run()
            self.bytes_each += output.numel() * output.element_size() / self.samples
            return output

        for batch in self.batches:
            self._run(batch, act)
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
        chosen = sample_positions(math.prod(call.positions), rows, self.samples, source).to(device)
        columns = call.columns(chosen)  # [groups, samples, positions, n]
        if large:
            self._add_units(layer, call, at_least_float32(columns[0].flatten(0, 1)))
            return
        if not layer.grams:
            layer.grams = [torch.zeros(n + 1, n + 1, dtype=torch.float64, device=device) for _ in range(call.groups)]
        for gram, part in zip(layer.grams, columns, strict=True):
            add_squares(gram, at_least_float32(part.flatten(0, 1)))
        layer.rows += len(call.input) * len(chosen)

    def _add_units(self, layer: _Layer, call: LayerCall, columns: Tensor) -> None:
        weight = at_least_float32(call.as_matrix(call.weight.detach())[0])
        for group in self.groups:
            for slot, indices in _consumed(group):
                if slot.parameter != call.name:
                    continue
                zeros = torch.zeros(2, call.outputs, group.size, dtype=torch.float64, device=weight.device)
                outputs = layer.by_unit.setdefault(group.name, _UnitOutputs(*zeros))
                for unit, own in enumerate(indices):
                    at = torch.tensor(_inputs_of(call, own, 0), device=weight.device)
                    added = (columns[:, at] @ weight[:, at].T).double()  # [rows, outputs]
                    outputs.sums[:, unit] += added.sum(0)
                    outputs.squares[:, unit] += added.square().sum(0)
                outputs.rows += len(columns)

    def measure_fisher_weights(self) -> None:
        """Run once over some of the data, with gradients, for the Fisher weights of the layers' outputs."""
        for name, found in fisher_weights(self._run, self.batches, self.layers, self.seed).items():
            self.layers[name].fisher = found

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

    def refitted(self, group: Group, removed: Sequence[int]) -> _Refit:
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
                inner = gram[stays][:, stays] / layer.rows
                ridge = RIDGE * inner.diagonal().mean()
                inner.diagonal().add_(ridge)
                goal = matrix[k] @ gram[:, stays] / layer.rows + ridge * matrix[k][:, stays]
                matrix[k, :, stays] = torch.linalg.solve(inner, goal.T).T
                matrix[k, :, ~stays] = 0
            weight, constant = call.from_matrix(matrix[..., :-1]), matrix[..., -1].flatten()
            found[call.name] = weight.to(call.weight.dtype), constant.to(call.weight.dtype)
        return found

    @torch.no_grad()
    def divergences(self, trials: Sequence[_Refit], total: int, progress: bool) -> list[float]:
        """Return the output divergence of each of these trials, of `total` in all.

        Up to the first layer that a trial changes, everything is as in the network itself, so the outputs of the layers
        there are kept and not computed again.
        """
        totals = [0.0] * len(trials)
        batches = self._trial_batches(total)

        def keep(layer: LayerCall, call: FunctionCall) -> Tensor:
            if layer.name in self.layers:
                check_all_finite(layer.input, "its input", layer=owner(layer.name))
            outputs.append(call.run())
            return outputs[-1].clone()  # the network may write to it

        with bar("trying cuts", len(batches) * len(trials), progress) as advance:
            for batch in batches:
                outputs: list[Tensor] = []
                wanted = self._run(batch, keep)
                for number, refit in enumerate(trials):
                    found = self._run(batch, _with_refit(refit, outputs))
                    totals[number] += output_divergence(found, wanted) * batch_size(batch)
                    advance()
        return [total / count_samples(batches) for total in totals]

    def _trial_batches(self, trials: int) -> list[Call]:
        """Return the samples of the trials, in batches for which the outputs of all layers fit into the cache."""
        wanted = max(TRIAL_SAMPLES, PASSES * self.samples // trials)
        size = max(1, min(BATCH, int(min(CACHE, self.memory // 2) / max(1.0, self.bytes_each))))
        before = accumulate(map(batch_size, self.held_out), initial=0)
        return list(split([batch for batch, samples in zip(self.held_out, before) if samples < wanted], size))


def _consumed(group: Group) -> list[tuple[Slot, Units]]:
    """Return the slots along which layers consume a group, with the indices of its units."""
    return [(slot, at) for slot, at in zip(group.slots, group.indices, strict=True) if slot in group.consumes]


def _is_large(call: LayerCall) -> bool:
    return call.as_matrix(call.weight).shape[2] > LARGEST


def _with_constant(call: LayerCall) -> Tensor:
    """Return the weight of a layer as a matrix with a column for the constant, in double precision."""
    return F.pad(call.as_matrix(call.weight.detach()).double(), (0, 1))


def _with_refit(refit: _Refit, outputs: Sequence[Tensor]) -> Act:
    """Return the action at each layer of a trial: the known output up to the first layer that is refitted."""
    known: Iterator[Tensor] | None = iter(outputs)

    def act(layer: LayerCall, call: FunctionCall) -> Tensor:
        nonlocal known
        if layer.name in refit:
            known = None
            weight, constant = refit[layer.name]
            output: Tensor = call.run(weight=weight)
            return output + constant.view([-1] + [1] * (0 if layer.linear else len(layer.stride)))
        return call.run() if known is None else next(known).clone()

    return act


def _inputs_of(call: LayerCall, indices: Sequence[int], group: int) -> tuple[int, ...]:
    """Return the inputs that a unit has among those of one group of a layer, from its indices along the weight."""
    kernel = math.prod(call.kernel)
    if call.transposed and call.groups > 1:
        own = call.weight.shape[0] // call.groups
        indices = [i - group * own for i in indices if group * own <= i < (group + 1) * own]
    return tuple(i * kernel + tap for i in indices for tap in range(kernel))
