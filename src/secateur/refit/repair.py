"""Refit the layers of a cut network in closed form, so that its output is near to that of the original again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from secateur.checks import known_keywords
from secateur.errors import SecateurError, first_line
from secateur.network.batches import (
    EVERY,
    Call,
    SplitBatch,
    as_batches,
    batch_size,
    calls,
    count_bytes,
    count_samples,
    fitted_samples,
    hold_out,
    on_device_of,
    split,
    take,
    whole_batches,
)
from secateur.network.examples import revive
from secateur.network.footprint import batch_that_fits
from secateur.network.layer_calls import LayerCall, at_positions
from secateur.network.memory import free_memory, megabytes, memory_errors, out_of_memory, room
from secateur.network.modules import Slot, device_of, duplicate, named_tensors, one_at_a_time, owner, unwrap
from secateur.network.outputs import with_all_outputs, without_outputs
from secateur.network.precision import at_least_float32, check_all_finite
from secateur.network.processes import batch_source, copy_from_first, distributed, in_use, own_share, this_process
from secateur.network.scope import ScopeNetwork, inputs_of, put_back
from secateur.progress import bar
from secateur.refit.choice import JUDGED, Judged, nearest
from secateur.refit.least_squares import LARGEST, ROWS, Dual, Fitted, Normal, sample_positions
from secateur.refit.lockstep import Ends, Pause, in_lockstep
from secateur.refit.shifts import Windows
from secateur.refit.tape import RefitLayer, Tape, record
from secateur.stages import stage
from secateur.surgery import rewrite
from secateur.surgery.cut import check_plan, wrap_like
from secateur.surgery.plan import Plan

TOGETHER = 256  # samples that run together: fewer batches are fewer calls of small functions
HALVINGS = 4  # of the memory, where it turns out to be too much
MATRICES = EVERY + 2  # that a fit holds at once: x x' of each fold, their sum without one, and its factor
TINY = 1e-3  # of the largest scale of a norm: channels scaled by less do not compensate for others


@dataclass(frozen=True)
class LayerRepair:
    """The result of refitting one layer, by cross-validation: each sample's error is that of a fit without it."""

    name: str
    before: float  # mean square error over mean square of the target
    after: float
    kept: int  # outputs that kept their old weights, since no fit was better
    outputs: int


@dataclass(frozen=True)
class Repair:
    """The result of a repair.

    `before` and `after` are output divergences from the original on every fourth sample. These samples took part in the
    fits, so on fresh samples the divergence is larger.
    """

    layers: tuple[LayerRepair, ...]
    samples: int
    before: float  # of the network as cut
    after: float  # as repaired
    norms: bool  # whether the statistics of norms were estimated again
    notes: tuple[str, ...] = ()


@known_keywords
@one_at_a_time
def repair(
    small: nn.Module,
    model: nn.Module,
    data: Any,
    plan: Plan,
    *,
    samples: int | None = None,
    to_inputs: Callable[[Any], Any] | None = None,
    memory: int | None = None,
    progress: bool = False,
) -> nn.Module:
    """Return the cut network with its layers refitted, so that its output is near to the original's.

    >>> small = sc.repair(sc.cut(model, plan), model, images, plan)

    Layer by layer from the input on, each is fitted by least squares from its input in the cut network to the output of
    the original's layer, or, where its output is added to a skip connection, to the output that makes the sum right. No
    labels are used. The ridge is chosen by cross-validation over four parts of the samples; an output that no fit
    improves keeps its weights, the others get the mean of the fits without one part each, and the network stays as cut
    if its output does not come nearer to the original's on every fourth sample. Both networks are left unchanged.

    Args:
        small: the cut network.
        model: the original network.
        data: a tensor (one batch) or an iterable of batches; labels beside the inputs are ignored. Never test data.
        plan: the plan of the cut.
        samples: the number of samples to use; all if not given.
        to_inputs: turns a batch into the input of the network: a tensor, a tuple of arguments or a dict of keywords.
        memory: bytes for temporary arrays; if not given, half of the free memory, and no more than 1.5 GB. Samples
            whose results do not fit into a third of it join at a later layer, where results are smaller.
        progress: show a progress bar on the standard error stream.
    """
    if plan.scope:
        whole, repaired = unwrap(model), duplicate(unwrap(small))
        inputs = inputs_of(whole, plan.scope, data if to_inputs is None else list(map(to_inputs, as_batches(data))))
        part = repair(
            ScopeNetwork(repaired, plan.scope),
            ScopeNetwork(whole, plan.scope),
            inputs,
            replace(plan, scope=()),
            samples=samples,
            memory=memory,
            progress=progress,
        )
        put_back(repaired, part)
        return wrap_like(small, repaired)
    with memory_errors(), distributed():
        batches = list(calls(data, example=revive(plan.example), to_inputs=to_inputs, samples=samples))
        original = without_outputs(unwrap(model), plan.free_outputs)
        if plan.output == "graph":
            check_plan(original, plan)
            original = rewrite.build(rewrite.programs_of(original, revive(plan.example, like=original)))
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
    """Return the same as `repair`, with its result for each layer; if memory runs out, of half as many samples."""
    within = room(memory, device_of(small))
    for _ in range(HALVINGS):
        try:
            return _refit(small, model, batches, plan, within, progress)
        except Exception as error:
            if out_of_memory(error) is None or in_use():  # other processes would not know of it
                raise
        within //= 2  # outside of the handler, which holds the arrays of the attempt
    return _refit(small, model, batches, plan, within, progress)


def _refit(
    small: nn.Module, model: nn.Module, batches: Sequence[Call], plan: Plan, memory: int, progress: bool
) -> tuple[nn.Module, Repair]:
    original = without_outputs(unwrap(model), plan.free_outputs)
    as_cut = without_outputs(unwrap(small), plan.free_outputs)
    repaired = duplicate(as_cut)
    if (found := count_samples(batches)) < EVERY:
        raise SecateurError(f"{found} samples are too few", layer="data", remedy="give at least 128")
    _check_plan(original, repaired, plan)
    most = max(1, count_samples(batches) // this_process().world)  # so that every process has a batch
    most = min(most, batch_that_fits(original, batches[0], memory // 4, most=TOGETHER))
    used = list(split(batches, most))
    two = take(used[0], slice(2))  # a single sample would not show tensors without an axis of samples
    firsts = [_recorded(network, two) for network in (repaired, original)]
    tape, original_tape = (_recorded(network, two) for network in (repaired, original))
    stateful = firsts[0].names != tape.names or firsts[1].names != original_tape.names
    if tape.names != original_tape.names:
        raise SecateurError(
            "the cut network calls other functions than the original, so they cannot run in lockstep",
            layer=type(repaired).__name__,
            remedy="pass the network that the plan was made for; repair=False leaves the repair out",
        )
    layers = sorted(tape.refit_layers(), key=lambda layer: layer.end)
    _check_memory(layers, repaired)
    fits = _that_fit(
        layers, (tape, original_tape), batch_size(two), count_bytes(two), memory // 2
    )  # sums take the rest
    used, notes = _at_most(used, fits[-1] if fits else count_samples(used), memory)
    parts = hold_out(used, together=most)
    sizes = [len(part.order) for part in parts]
    counts = _batches_within(sizes, fits)
    fitter = _Fitter(original, repaired, plan)
    rows = []
    mine = own_share(range(len(parts)))
    running = [max(1, sum(number < count for number in mine)) for count in counts]  # one shows the shapes, at least
    own = whole_batches([parts[number] for number in mine])
    judged = _judged(parts, mine)
    ends: dict[int, Ends] = {}
    with bar("fitting layers", len(layers), progress) as advance:
        with closing(in_lockstep(original, repaired, own, layers, stateful, running, judged, ends)) as stations:
            for (layer, pauses), count in zip(stations, counts, strict=True):
                with stage("repair: sums"):
                    folds = [(number, parts[number].folds if number < count else ()) for number in mine]
                    rows.append(fitter.fit(layer, zip(pauses, folds, strict=False), sum(sizes[:count]), count))
                advance()
    notes += _fewer_samples(rows, counts, sizes)
    with stage("repair: choice"):
        known = [
            Judged.of(original, as_cut, repaired, take(own[place], which), ends.get(place))
            for place, which in judged.items()
        ]
        best = nearest(as_cut, repaired, known, fitted_samples(hold_out(used)))
    if not best.repaired:
        notes += ("no repair brought the output nearer to the original's: the network is as cut",)
    result = Repair(tuple(rows), count_samples(used), best.before, best.after, best.norms, notes)
    return wrap_like(small, with_all_outputs(best.network)), result


def _recorded(network: nn.Module, call: Call) -> Tape:
    try:
        return record(network, on_device_of(network, call))
    except Exception as error:
        raise out_of_memory(error) or SecateurError(
            f"the network does not run on {batch_size(call)} samples of the data: {first_line(error)}",
            layer=type(network).__name__,
            remedy="pass inputs that forward accepts, in batches of any size",
        ) from error


def _check_plan(original: nn.Module, small: nn.Module, plan: Plan) -> None:
    check_plan(original, plan)
    tensors = named_tensors(small)
    for slot, indices in plan.kept.items():
        found = tuple(tensors[slot.parameter].shape) if slot.parameter in tensors else None
        if found is not None and (slot.axis >= len(found) or found[slot.axis] != len(indices)):
            raise SecateurError(
                f"the plan leaves {len(indices)} along axis {slot.axis}, but the network has the shape {found}",
                layer=slot.parameter,
                remedy="pass the network cut by this plan: sc.cut(model, plan)",
            )


def _check_memory(layers: Sequence[RefitLayer], network: nn.Module) -> None:
    """Raise an error if a layer takes more memory than there is, with however few samples."""
    tensors, free = named_tensors(network), free_memory(device_of(network))
    for layer in layers:
        weight = tensors[layer.weight]
        inputs = weight[0].numel()
        needed = MATRICES * (inputs + 1) ** 2 * max(4, weight.element_size()) if inputs <= LARGEST else 0
        if needed > free:
            raise SecateurError(
                f"refitting the {inputs:,} inputs of {owner(layer.weight)} takes about {megabytes(needed)}, and this "
                f"process may use {megabytes(free)} more",
                layer="memory",
                remedy="allow more memory, or leave the repair out (repair=False; on the command line --no-repair)",
            )


def _that_fit(layers: Sequence[RefitLayer], tapes: Sequence[Tape], samples: int, given: int, memory: int) -> list[int]:
    """Return for each layer how many samples can wait at it in both networks; at later ones they may be more.

    Args:
        samples: that were recorded.
        given: bytes of these samples.
    """
    each = [(given + sum(tape.bytes_at(layer) for tape in tapes)) / samples for layer in layers]
    fits = [max(2 * EVERY, int(memory / max(1, one))) for one in each]
    return list(accumulate(reversed(fits), min))[::-1]


def _batches_within(sizes: Sequence[int], fits: Sequence[int]) -> list[int]:
    """Return for each layer how many batches, from the first one on, have as many samples as fit; at least one."""
    so_far = list(accumulate(sizes))
    return [max(1, sum(samples <= most for samples in so_far)) for most in fits]


def _judged(parts: Sequence[SplitBatch], mine: Sequence[int]) -> dict[int, slice]:
    """Return which batches of this process, by their place, have held-out samples that judge, and which these are."""
    before = list(accumulate((len(part.order) - part.fitted for part in parts), initial=0))
    return {
        place: slice(parts[number].fitted, None)
        for place, number in enumerate(mine)
        if before[number] < min(JUDGED, before[number + 1])
    }


def _at_most(batches: list[Call], count: int, memory: int) -> tuple[list[Call], tuple[str, ...]]:
    """Return as many of the samples as fit at the last layers, and a note if some do not."""
    total = count_samples(batches)
    if total <= count:
        return batches, ()
    used, left = [], count
    for batch in batches:
        if left:
            used.append(take(batch, slice(left)))
            left -= batch_size(used[-1])
    note = f"the repair uses {count} of {total} samples, as many as fit into {megabytes(memory)} (memory=)"
    return used, (note,)


def _fewer_samples(rows: Sequence[LayerRepair], counts: Sequence[int], sizes: Sequence[int]) -> tuple[str, ...]:
    """Return a note if some layers were fitted on a part of the samples."""
    fewer = [row.name for row, count in zip(rows, counts, strict=True) if count < len(sizes)]
    if not fewer:
        return ()
    least = sum(sizes[: min(counts)])
    return (
        f"{len(fewer)} of {len(rows)} layers, up to {fewer[-1]}, were refitted on fewer samples than the others, at "
        f"least {least} of {sum(sizes)}: as many as fit into memory (memory=)",
    )


class _Fitter:
    """Refits one layer after the other."""

    def __init__(self, original: nn.Module, repaired: nn.Module, plan: Plan) -> None:
        self.original_tensors, self.tensors = named_tensors(original), named_tensors(repaired)
        self.plan = plan

    def fit(
        self,
        layer: RefitLayer,
        pauses: Iterable[tuple[tuple[Pause, Pause], tuple[int, Sequence[slice]]]],
        samples: int,
        batches: int,
    ) -> LayerRepair:
        """Gather the inputs and the targets of the layer, solve, and set the new weights.

        Args:
            pauses: of both networks at this layer, for each batch of this process; with the number of the batch among
                those of all processes, and with its folds, none if it takes no part.
            samples: the number of samples in the batches of all processes.
            batches: the number of these batches.
        """
        sums: Normal | Dual | None = None
        positions, source = 0, batch_source(0, layer.step)
        for (ours, theirs), (number, folds) in pauses:
            call = theirs.call
            if sums is None:
                target_of = self._target(layer, ours)
                old = call.as_matrix(call.weight.detach()).double()
                groups, outputs, n = old.shape
                bias = old.new_zeros(groups * outputs) if call.bias is None else call.bias.detach().double()
                weights = torch.cat([old, bias.view(groups, outputs, 1)], 2)
                kind = at_least_float32(call.input).dtype
                sums = Normal(weights, kind) if n <= LARGEST or groups > 1 else Dual(weights, kind)
            if math.prod(call.positions) != positions:
                positions, rows = math.prod(call.positions), max(ROWS, 16 * n)
                chosen = sample_positions(positions, rows, samples, source).to(call.input.device)
                windows = Windows.of(call) if isinstance(sums, Normal) else None
                whole, parts = samples * positions, EVERY * batches
                if windows and not windows.saves(samples, min(rows, whole), call.input.shape[1], parts):
                    windows = None
            if not folds:
                continue
            target = target_of(ours, theirs, None if windows or len(chosen) == positions else chosen)
            columns = call.input if windows else call.columns(chosen)  # [groups, samples, positions, n]
            check_all_finite(columns, "its input", layer=owner(layer.weight))
            check_all_finite(target, "its target output", layer=owner(layer.weight))
            if windows and isinstance(sums, Normal):
                maps = target.unflatten(2, windows.positions)
                for fold, which in enumerate(folds):
                    if len(maps[which]):
                        sums.add_maps(windows, call.input[which], maps[which], fold)
                continue
            targets = target.unflatten(1, (groups, -1)).permute(1, 0, 3, 2)
            for fold, which in enumerate(folds):
                if targets[:, which].numel():
                    sums.add(columns[:, which].flatten(1, 2), targets[:, which].flatten(1, 2), fold, number)
        assert sums is not None
        sums.add_over_processes()
        with stage("repair: solve"):
            found = sums.fit(layer.takes_constant)
        copy_from_first([found.weight])
        if not found.ratio.isinf().all():
            self._set(layer, call.from_matrix(found.weight[..., :-1]), found.weight[..., -1].flatten())
        return _layer_repair(layer, found)

    @torch.no_grad()
    def _set(self, layer: RefitLayer, weight: Tensor, constant: Tensor) -> None:
        self.tensors[layer.weight].copy_(weight)
        if layer.bias is not None:
            self.tensors[layer.bias].copy_(constant)
        elif layer.norm is not None:
            layer.norm.add(constant, self.tensors)

    def _target(self, layer: RefitLayer, first: Pause) -> Callable[[Pause, Pause, Tensor | None], Tensor]:
        """Return what computes the output of the layer with which the sum is as in the original.

        From the pauses of both networks and the chosen positions, all if None, it is [samples, outputs, positions].
        """
        assert first.output is not None
        kind, device = at_least_float32(first.output).dtype, first.output.device
        which = torch.tensor(_kept_outputs(self.plan, layer.weight, first.call), device=device)
        if layer.norm is not None:
            scale, shift = (value[which, None].to(kind) for value in layer.norm.affine(self.original_tensors))
            own_scale, own_shift = (value[:, None].to(kind) for value in layer.norm.affine(self.tensors))
            tiny = own_scale.abs() <= TINY * own_scale.abs().max()
            divisor = own_scale.where(~tiny, 1.0)

        def some(values: Tensor, chosen: Tensor | None) -> Tensor:
            return at_least_float32(values if chosen is None else at_positions(values, chosen))

        def target(ours: Pause, theirs: Pause, chosen: Tensor | None) -> Tensor:
            assert ours.output is not None
            output = some(ours.output, chosen)[:, which]
            if ours.other is None or theirs.other is None:
                return output
            gap = some(ours.other, chosen)[:, which] - some(theirs.other, chosen)
            if layer.norm is None:
                return output + gap
            wanted = (scale * output + shift + gap - own_shift) / divisor
            return wanted.where(~tiny, output)

        return target


def _kept_outputs(plan: Plan, name: str, call: LayerCall) -> Sequence[int]:
    """Return which outputs of the original's layer the cut one has."""
    inputs, outputs = call.weight.shape[:2]
    if not call.transposed:
        return plan.kept.get(Slot(name, 0), range(inputs))
    groups = sorted({i * call.groups // inputs for i in plan.kept.get(Slot(name, 0), range(inputs))})
    own = plan.kept.get(Slot(name, 1), range(outputs))  # of each group
    return [group * outputs + i for group in groups for i in own]


def _layer_repair(layer: RefitLayer, found: Fitted) -> LayerRepair:
    energy = float(found.energy.sum()) or 1.0
    return LayerRepair(
        name=owner(layer.weight),
        before=float(found.before.sum()) / energy,
        after=float(found.after.sum()) / energy,
        kept=int(found.ratio.isinf().sum()),
        outputs=found.ratio.numel(),
    )
