"""Test each group: does the model's own forward still run, and correctly, when the group is narrower?"""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from secateur._torch import pytree
from secateur.channels.graph import ChannelGraph, Group
from secateur.channels.program import Program
from secateur.channels.ties import Reason
from secateur.errors import first_line, users_line
from secateur.network.examples import Example, call_arguments, doubled
from secateur.network.modules import duplicate, meta_copy, mode, named_tensors
from secateur.surgery.cut import cut_module
from secateur.surgery.plan import Plan
from secateur.surgery.slices import mask_tensors
from secateur.surgery.verify import relative_difference

FEW = 8  # units that remain of a group for the trial with numbers, if nothing in forward depends on its size
TOLERANCE = 1e-5  # in double precision; some networks compute parts in single precision whatever their weights are
Trial = Callable[[Sequence[Group]], Exception | None]  # cuts groups and returns the error, None if all is well


class WrongResult(Exception):
    """The cut network runs, but computes something else than the masked one."""


class WrongShape(Exception):
    """The cut network runs, but returns other shapes than the original."""


def probe(
    model: nn.Module, example: Example, graph: ChannelGraph, suspects: set[str], programs: Sequence[Program] = ()
) -> ChannelGraph:
    """Return the graph with those groups kept that the model's own forward does not allow to shrink.

    The first trial runs without data, on the meta device, at almost no cost: forward must run. The second runs once
    with numbers: the result must be right, since a hard-coded size can happen to fit (`view(n, 4, c // 4)` on 12
    channels instead of 16).

    Args:
        model, example, graph: as traced.
        suspects: names of the groups to test first, since they pass a size that may be hard-coded.
        programs: the exported programs of evaluation and of training, which know the shapes of the original's outputs.
    """
    if graph.prunable and not _shapes_stay(model, example, graph, programs):
        graph = _keep_failing(graph, _shape_trial(model, example, graph), suspects)
    if graph.prunable:
        graph = _keep_failing(graph, _value_trial(model, example, graph, suspects), suspects)
    return graph


def _keep_failing(graph: ChannelGraph, trial: Trial, suspects: set[str]) -> ChannelGraph:
    if trial(graph.prunable) is None:
        return graph
    first = [group for group in graph.prunable if group.name in suspects]
    failing = _failing(first, trial) if first else {}
    rest = [group for group in graph.prunable if group.name not in failing]
    if rest and trial(rest) is not None:
        failing |= _failing(rest, trial)
        rest = [group for group in rest if group.name not in failing]
    while rest and (error := trial(rest)) is not None:  # they fail only in combination: keep one after the other
        failing[rest.pop().name] = _reason(error)
    groups = (replace(g, reasons=(failing[g.name],)) if g.name in failing else g for g in graph.groups)
    return replace(graph, groups=tuple(groups))


def _failing(groups: Sequence[Group], trial: Trial) -> dict[str, Reason]:
    """Return the groups that fail on their own, found by bisection."""
    error = trial(groups)
    if error is None:
        return {}
    if len(groups) == 1:
        return {groups[0].name: _reason(error)}
    middle = len(groups) // 2
    return _failing(groups[:middle], trial) | _failing(groups[middle:], trial)


def _shapes_stay(model: nn.Module, example: Example, graph: ChannelGraph, programs: Sequence[Program]) -> bool:
    """Return whether forward runs with all groups narrower, and returns the shapes of both programs.

    False also if it is not known: the meta device may lack an op.
    """
    if len(programs) < 2:  # training mode could not be exported
        return False
    inputs = pytree.tree_map_only(Tensor, lambda leaf: leaf.to("meta"), example)
    try:
        small = cut_module(meta_copy(model), _narrower(graph, graph.prunable))
        found = [_shapes(_run(small, inputs)), _shapes(_run(small, doubled(inputs), train=True))]
    except Exception:
        return False
    return found == [program.output_shapes for program in programs]


def _narrower(graph: ChannelGraph, groups: Sequence[Group]) -> Plan:
    return Plan.keeping(graph, {group.name: range(1, group.size) for group in groups})


def _shape_trial(model: nn.Module, example: Example, graph: ChannelGraph) -> Trial:
    """Return a trial that cuts one unit of each group and compares the output shapes with the original's."""
    shadow, inputs = meta_copy(model), pytree.tree_map_only(Tensor, lambda leaf: leaf.to("meta"), example)
    try:
        expected = [(inputs, False, _shapes(_run(shadow, inputs)))]
    except Exception:  # an op that the meta device does not have: use real numbers
        shadow, inputs = duplicate(model), example
        expected = [(inputs, False, _shapes(_run(shadow, inputs)))]
    with contextlib.suppress(Exception):
        several = doubled(inputs)
        expected.append((several, True, _shapes(_run(shadow, several, train=True))))

    def trial(groups: Sequence[Group]) -> Exception | None:
        small = cut_module(shadow, _narrower(graph, groups))
        for given, train, shapes in expected:
            try:
                found = _shapes(_run(small, given, train=train))
            except Exception as error:
                return error
            if found != shapes:
                return WrongShape(f"{found} instead of {shapes}")
        return None

    return trial


def _value_trial(model: nn.Module, example: Example, graph: ChannelGraph, suspects: set[str]) -> Trial:
    """Return a trial that cuts half of each group and compares with the mask, on random weights in double precision.

    Groups do not depend on the weights, and a layer that a new network initialises to zero would hide errors. For
    speed, groups that pass no size that may be hard-coded begin with a few units instead of all.
    """
    few = {g.name: range(FEW) for g in graph.prunable if g.name not in suspects and g.size > FEW}
    shadow, generator = model, torch.Generator().manual_seed(0)
    if few:
        plan = Plan.keeping(graph, few)
        shadow, graph = cut_module(model, plan), plan.graph_after(graph)
    shadow = duplicate(shadow).double()
    _randomise(shadow, generator)

    def noise(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        return torch.randn(leaf.shape, generator=generator, dtype=torch.float64).to(leaf.device)

    inputs = pytree.tree_map_only(Tensor, noise, example)

    def compare(groups: Sequence[Group]) -> Exception | None:
        sizes = {group.name: graph[group.name].size for group in groups}
        half = {n: torch.randperm(size, generator=generator)[: (size + 1) // 2].tolist() for n, size in sizes.items()}
        plan = Plan.keeping(graph, half)
        tensors, masked_names = named_tensors(shadow), {slot.parameter for slot in plan.consumes}
        masked = duplicate(shadow, {id(t): t for name, t in tensors.items() if name not in masked_names})
        mask_tensors(named_tensors(masked), plan)
        try:
            difference = relative_difference(_run(cut_module(shadow, plan), inputs), _run(masked, inputs))
        except Exception as error:
            return error
        return WrongResult(f"the cut network differs by {difference:.0e}") if difference > TOLERANCE else None

    @functools.cache
    def deterministic() -> bool:
        try:
            return relative_difference(_run(shadow, inputs), _run(shadow, inputs)) == 0
        except Exception:  # it does not run in double precision or on random numbers
            return False

    def trial(groups: Sequence[Group]) -> Exception | None:
        error = compare(groups)
        return error if error and deterministic() else None  # else verify on real data must suffice

    return trial


@torch.no_grad()
def _randomise(model: nn.Module, generator: torch.Generator) -> None:
    """Fill the parameters with random numbers that keep the scale of activations."""
    for parameter in model.parameters():
        if parameter.is_floating_point() and parameter.dim() > 1:
            scale = max(1, parameter.numel() // parameter.shape[0]) ** -0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * scale)
        elif parameter.is_floating_point():
            parameter.copy_(torch.rand(parameter.shape, generator=generator, dtype=torch.float64) + 0.5)


def _run(model: nn.Module, example: Example, *, train: bool = False) -> Any:
    args, kwargs = call_arguments(example)
    with mode(model, train), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model(*args, **kwargs)


def _shapes(output: Any) -> list[tuple[int, ...]]:
    return [tuple(leaf.shape) for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]


def _reason(error: Exception) -> Reason:
    if isinstance(error, WrongResult):
        return Reason(f"forward selects its channels by hard-coded indices: {error}; output='graph' can cut it")
    if isinstance(error, WrongShape):
        return Reason(f"forward returns other shapes when it is narrower: {error}; output='graph' can cut it")
    line, _ = users_line(error)
    text = f"forward fails when it is narrower, since its size is hard-coded: {first_line(error)}"
    return Reason(f"{text}; output='graph' can cut it", source=line.rpartition(os.sep)[2])
