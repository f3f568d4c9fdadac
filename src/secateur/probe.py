"""Try each group once on tensors without storage: does the user's own forward still run when it is narrower?"""

from __future__ import annotations

import copy
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
from secateur.program import Example, call_arguments, doubled, first_line, meta_copy, mode, users_line
from secateur.surgery import cut_module
from secateur.ties import Reason, Slot

Trial = Callable[[Sequence[Group]], Exception | None]


def probe(model: nn.Module, example: Example, graph: ChannelGraph, at_literals: set[tuple[Slot, int]]) -> ChannelGraph:
    """Keep the groups that the model's own forward does not allow to shrink, with that reason."""
    trial = _trial(model, example, graph)
    if not graph.prunable or trial(graph.prunable) is None:
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


def _trial(model: nn.Module, example: Example, graph: ChannelGraph) -> Trial:
    """A function that cuts one unit of each given group and returns what forward then raises, if anything."""
    shadow, inputs = meta_copy(model), pytree.tree_map(_to_meta, example)
    try:
        wanted = [_shapes(shadow, inputs, train=False)]
    except Exception:  # an op without a shape-only form: try with real numbers
        shadow, inputs = copy.deepcopy(model), example
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


def _shapes(model: nn.Module, example: Example, *, train: bool) -> list[tuple[int, ...]]:
    args, kwargs = call_arguments(example)
    with mode(model, train), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = model(*args, **kwargs)
    return [tuple(leaf.shape) for leaf in pytree.tree_leaves(out) if isinstance(leaf, Tensor)]


def _to_meta(leaf: Any) -> Any:
    return leaf.to("meta") if isinstance(leaf, Tensor) else leaf


def _reason(error: Exception) -> Reason:
    place, _ = users_line(error)
    text = f"forward has its size written in and fails without it: {first_line(error)}; output='graph' can cut it"
    return Reason(text, source=place.rpartition(os.sep)[2])
