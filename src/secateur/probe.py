"""Try each group once: does the user's own forward still run, and rightly, when it is narrower?"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from secateur.graph import ChannelGraph, Group
from secateur.plan import Plan
from secateur.program import (
    Example,
    call_arguments,
    doubled,
    duplicate,
    first_line,
    meta_copy,
    mode,
    named_tensors,
    users_line,
)
from secateur.slices import silence
from secateur.surgery import cut_module, relative_difference
from secateur.ties import Reason, Slot

RIGHT = 1e-5  # in double precision; some networks compute parts in single precision whatever they are given
Trial = Callable[[Sequence[Group]], Exception | None]


class Differs(Exception):
    """The cut network runs, but computes something else."""


def probe(model: nn.Module, example: Example, graph: ChannelGraph, at_literals: set[tuple[Slot, int]]) -> ChannelGraph:
    """Keep the groups that the model's own forward does not allow to shrink, with that reason.

    First without storage, where a trial costs nothing: forward must run. Then once with numbers: what runs must also
    be right, for a size written into forward may happen to fit (`view(n, 4, c // 4)` on 12 channels instead of 16).
    """
    for make in (_shape_trial, _value_trial):
        if graph.prunable:
            graph = _without(graph, make(model, example, graph), at_literals)
    return graph


def _without(graph: ChannelGraph, trial: Trial, at_literals: set[tuple[Slot, int]]) -> ChannelGraph:
    if trial(graph.prunable) is None:
        return graph
    suspects = [group for group in graph.prunable if (group.slots[0], group.indices[0][0][0]) in at_literals]
    refused = _refused(suspects, trial) if suspects else {}
    rest = [group for group in graph.prunable if group.name not in refused]
    if rest and trial(rest) is not None:
        refused |= _refused(rest, trial)
        rest = [group for group in rest if group.name not in refused]
    while rest and (error := trial(rest)) is not None:  # they fail only together: keep one after the other
        refused[rest.pop().name] = _reason(error)
    groups = tuple(replace(g, reasons=(refused[g.name],)) if g.name in refused else g for g in graph.groups)
    return replace(graph, groups=groups)


def _refused(groups: Sequence[Group], trial: Trial) -> dict[str, Reason]:
    """Halve until each group that fails by itself is found."""
    error = trial(groups)
    if error is None:
        return {}
    if len(groups) == 1:
        return {groups[0].name: _reason(error)}
    middle = len(groups) // 2
    return _refused(groups[:middle], trial) | _refused(groups[middle:], trial)


def _shape_trial(model: nn.Module, example: Example, graph: ChannelGraph) -> Trial:
    """A function that cuts one unit of each given group and returns what forward then raises, if anything."""
    shadow, inputs = meta_copy(model), pytree.tree_map(_to_meta, example)
    try:
        wanted = [_shapes(shadow, inputs, train=False)]
    except Exception:  # an op without a shape-only form: try with real numbers
        shadow, inputs = duplicate(model), example
        wanted = [_shapes(shadow, inputs, train=False)]
    modes = [(inputs, False)]
    try:
        wanted.append(_shapes(shadow, doubled(inputs), train=True))
        modes.append((doubled(inputs), True))
    except Exception:
        modes = modes[:1]

    def trial(groups: Sequence[Group]) -> Exception | None:
        plan = Plan.keeping(graph, {group.name: range(1, group.size) for group in groups})
        small = cut_module(shadow, plan)
        for (given, train), shapes in zip(modes, wanted, strict=True):
            try:
                found = _shapes(small, given, train=train)
            except Exception as error:
                return error
            if found != shapes:
                return ValueError(f"forward gives {found} instead of {shapes}")
        return None

    return trial


def _value_trial(model: nn.Module, example: Example, graph: ChannelGraph) -> Trial:
    """A function that halves the given groups and compares with the mask, on random weights in double precision.

    Random weights, since groups do not depend on values: a layer that a fresh network starts at zero would hide errors.
    """
    generator = torch.Generator().manual_seed(0)
    shadow = duplicate(model).double()
    with torch.no_grad():
        for parameter in shadow.parameters():
            if parameter.is_floating_point():
                noise = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) + 0.5
                if parameter.dim() > 1:  # scaled as for a layer that keeps the size of what passes
                    noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                    noise /= max(1, parameter.numel() // parameter.shape[0]) ** 0.5
                parameter.copy_(noise)
    args, kwargs = call_arguments(pytree.tree_map(lambda leaf: _noise(leaf, generator), example))

    def run(network: nn.Module) -> Any:
        with mode(network, False), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return network(*args, **kwargs)

    def trial(groups: Sequence[Group]) -> Exception | None:
        half = {g.name: torch.randperm(g.size, generator=generator)[: (g.size + 1) // 2].tolist() for g in groups}
        plan = Plan.keeping(graph, half)
        small, masked = cut_module(shadow, plan), duplicate(shadow)
        silence(named_tensors(masked), plan)
        try:
            difference = relative_difference(run(small), run(masked))
        except Exception as error:
            return error
        return Differs(f"the cut network differs by {difference:.0e}") if difference > RIGHT else None

    try:
        steady = relative_difference(run(shadow), run(shadow)) == 0
    except Exception:  # it does not run in double precision or on random numbers: verify on real data must do
        steady = False
    return trial if steady else lambda groups: None


def _noise(leaf: Any, generator: torch.Generator) -> Any:
    if isinstance(leaf, Tensor) and leaf.is_floating_point():
        return torch.randn(leaf.shape, generator=generator, dtype=torch.float64).to(leaf.device)
    return leaf


def _shapes(model: nn.Module, example: Example, *, train: bool) -> list[tuple[int, ...]]:
    args, kwargs = call_arguments(example)
    with mode(model, train), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = model(*args, **kwargs)
    return [tuple(leaf.shape) for leaf in pytree.tree_leaves(out) if isinstance(leaf, Tensor)]


def _to_meta(leaf: Any) -> Any:
    return leaf.to("meta") if isinstance(leaf, Tensor) else leaf


def _reason(error: Exception) -> Reason:
    if isinstance(error, Differs):
        return Reason(f"forward takes its channels by fixed numbers: {error}; output='graph' can cut it")
    place, _ = users_line(error)
    text = f"forward has its size written in and fails without it: {first_line(error)}; output='graph' can cut it"
    return Reason(text, source=place.rpartition(os.sep)[2])
