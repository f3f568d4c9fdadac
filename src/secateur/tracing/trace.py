"""Trace a network: find its channel groups, and for those that are kept the reasons."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from secateur._torch import forward_hooks, pytree
from secateur.channels.gather import gather
from secateur.channels.graph import ChannelGraph, Output
from secateur.channels.program import ExportError, Program, export_modes
from secateur.channels.rules import propagate
from secateur.channels.ties import FIXED, Reason, Ties
from secateur.channels.topology import layers_of
from secateur.checks import known_keywords
from secateur.errors import SecateurError, UsageError
from secateur.network.examples import Example, call_arguments, describe, explain_errors
from secateur.network.modules import check_finite, duplicate, exclusive, named_tensors, owner, unwrap
from secateur.network.outputs import DropOutputs, selectors, without_outputs
from secateur.network.scope import ScopeNetwork, capture, scope_paths
from secateur.surgery.rewrite import programs_of
from secateur.tracing.inputs import free_inputs
from secateur.tracing.parts import in_parts
from secateur.tracing.probe import probe
from secateur.tracing.widths import follow_widths


@known_keywords
def trace(
    model: nn.Module,
    example: Example,
    *,
    scope: str | Sequence[str] = (),
    keep: Sequence[str] = (),
    free_outputs: Sequence[str | int] = (),
    output: Output = "module",
    prune_inputs: bool = False,
) -> ChannelGraph:
    """Return the channel groups of a model: those that can be cut, and the others with the reasons why not.

    >>> graph = sc.trace(model, torch.zeros(1, 3, 224, 224))
    >>> print(graph)

    Args:
        model: the network; it is not changed.
        example: inputs as `forward` takes them: a tensor, a tuple of arguments or a dict of keyword arguments.
        scope: names or patterns of submodules to trace instead of the whole model, which then runs once on the example.
        keep: names, prefixes or patterns (`"layer4.*"`) of layers whose filters are kept.
        free_outputs: outputs that need not keep their channels, such as feature maps beside the predictions: paths or
            indices (`1`, `"features"`, `"aux.0"`, all below them too) or patterns (`"*.feats*"`). They are not compared
            either. An index counts in training mode only if `forward` returns the same there.
        output: what a cut will return. `"module"` is the model's own class; `"graph"` is the exported program, for
            networks whose `forward` has hard-coded sizes or computes its weights.
        prune_inputs: let inputs of the network be cut, too, where a linear layer or a convolution consumes them. The
            cut network still takes all of them, and this layer selects those that are kept.
    """
    if output not in ("module", "graph"):
        raise UsageError(f"output is {output!r}", remedy="use 'module' or 'graph'")
    if scope:
        paths = scope_paths(unwrap(model), scope)
        (args, kwargs), *_ = capture(unwrap(model), paths, [call_arguments(example)])
        part = ScopeNetwork(unwrap(model), paths)
        graph = trace(part, args or kwargs, keep=keep, free_outputs=free_outputs, prune_inputs=prune_inputs)
        return replace(graph, scope=paths)
    free = selectors(free_outputs)
    model = without_outputs(unwrap(model), free)
    check_finite(model)
    with exclusive():
        _check_values(model, example)
        try:
            graph = _traced(model, example, keep, output, prune_inputs)
            for hook in forward_hooks(model, DropOutputs):
                hook.check()
            return replace(graph, free_outputs=free)
        except Exception as error:
            _check_forward(model, example)  # its own error says more than that of torch.export
            if isinstance(error, ExportError):
                raise in_parts(error, model, call_arguments(example)) from error
            raise


def _check_values(model: nn.Module, example: Example) -> None:
    """Raise an error for a model on the meta device with an example that is not."""
    on_meta = any(tensor.is_meta for tensor in named_tensors(model).values())
    if on_meta and not all(leaf.is_meta for leaf in pytree.tree_leaves(example) if isinstance(leaf, Tensor)):
        raise SecateurError(
            "the model is on the meta device, so its weights have no values",
            layer=type(model).__name__,
            remedy="move it to a device with model.to_empty(device='cpu') and load its weights",
        )


def _check_forward(model: nn.Module, example: Example) -> None:
    """Raise the error of forward itself, if it has one."""
    args, kwargs = call_arguments(example)
    with explain_errors(example), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        duplicate(model).eval()(*args, **kwargs)


def _traced(
    model: nn.Module, example: Example, keep: Sequence[str], output: Output, prune_inputs: bool
) -> ChannelGraph:
    if output == "graph":
        network = programs_of(model, example)
        ties, _ = propagate(network.programs, hard_coded=False)
        graph = _graph(model, network.programs, ties, keep, describe(example), output, network.notes)
        return free_inputs(model, graph) if prune_inputs else graph
    programs, notes = export_modes(model, example)  # a branch that runs only in training must survive the cut too
    found = []
    for longest in (True, False):  # the second only if the first conflicts with hard-coded sizes
        ties, _ = propagate(programs, hard_coded=True, longest=longest)
        graph = _graph(model, programs, ties, keep, describe(example), output, notes)
        graph = free_inputs(model, graph) if prune_inputs else graph
        for candidate in follow_widths(model, graph):
            found.append(probe(model, example, candidate, _suspects(graph, ties), programs))
            if found[-1].prunable == candidate.prunable:
                break
        if not ties.ambiguous or found[-1].prunable == candidate.prunable:
            break
    return max(found, key=lambda graph: sum(group.size for group in graph.prunable))


def _graph(
    model: nn.Module,
    programs: list[Program],
    ties: Ties,
    keep: Sequence[str],
    example: Any,
    output: Output,
    notes: list[str],
) -> ChannelGraph:
    if not programs[0].graph.output_node().all_input_nodes:
        for hook in forward_hooks(model, DropOutputs):  # all of them may be free
            hook.check()
        raise SecateurError(
            "forward returns no tensor, so a cut of it cannot be compared",
            layer=type(model).__name__,
            remedy="return the predictions, or wrap the model in a module that does",
        )
    used = {name: tensor for program in programs for name, tensor in program.tensors.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in {**named_tensors(model), **used}.items()}
    shapes |= {slot.parameter: (size,) for slot, size in ties.sizes.items() if slot.parameter not in shapes}
    _keep_by_name(ties, [keep] if isinstance(keep, str) else keep, shapes)
    unused = [name for name in named_tensors(model) if name not in used and not name.endswith("_tracked")]
    return ChannelGraph(gather(ties), shapes, example, output, tuple(notes), tuple(unused), layers_of(programs[0]))


def _suspects(graph: ChannelGraph, ties: Ties) -> set[str]:
    """Return the groups whose channels pass an op with a size that may be hard-coded."""
    unit_of = ties.components()
    labels = torch.cat([*ties.hard_coded, torch.empty(0, dtype=torch.long)])
    suspect = np.isin(unit_of, unit_of[labels[labels != FIXED].numpy()])
    return {group.name for group in graph.groups if suspect[ties.blocks[group.slots[0]] + group.indices[0][0][0]]}


def _keep_by_name(ties: Ties, keep: Sequence[str], shapes: dict[str, tuple[int, ...]]) -> None:
    for pattern in keep:
        names = [name for name in shapes if _matches(name, pattern)]
        if not names:
            layers = sorted({owner(name) for name in shapes})
            close = difflib.get_close_matches(pattern, layers, n=3, cutoff=0.4) or layers[:3]
            raise UsageError(
                f"the keep pattern {pattern!r} matches no layer",
                remedy=f"use a layer's name, a prefix or a pattern such as 'layer4.*'; nearest: {', '.join(close)}",
            )
        for slot in [*ties.outputs, *ties.per_channel]:
            if slot.parameter in names:
                ties.keep(ties.labels_of(slot, ties.sizes[slot]), Reason(f"keep={pattern!r}"))


def _matches(name: str, pattern: str) -> bool:
    return name.startswith(pattern + ".") or fnmatchcase(name, pattern) or fnmatchcase(owner(name), pattern)
