"""Trace: which channels a network has, which must go together, which must stay, and why."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np
import torch
from torch import nn

from secateur.errors import SecateurError, UsageError
from secateur.gather import gather
from secateur.graph import ChannelGraph, Output
from secateur.probe import probe
from secateur.program import Example, Program, check_finite, describe, export, named_tensors, owner, unwrap
from secateur.rewrite import programs_of
from secateur.rules import follow
from secateur.ties import Reason, Slot, Ties


def trace(model: nn.Module, example: Example, *, keep: Sequence[str] = (), output: Output = "module") -> ChannelGraph:
    """Find every group of channels that can be cut, and for the others the reason why not.

    >>> graph = sc.trace(model, torch.zeros(1, 3, 224, 224))
    >>> print(graph)

    example: a tensor, a tuple of arguments or a dict of keyword arguments, as `forward` takes them.
    keep: layer names, prefixes or patterns (`"layer4.*"`) whose filters stay.
    output: `"module"` cuts the user's own class; `"graph"` cuts the exported program, for networks whose
        `forward` has sizes written into it or computes its weights.
    """
    if output not in ("module", "graph"):
        raise UsageError(f"output is {output!r}", remedy="use 'module' or 'graph'")
    model = unwrap(model)
    check_finite(model)
    if output == "graph":
        network = programs_of(model, example)
        ties, _ = follow(network.programs, literal=False)
        return _graph(model, example, network.programs, ties, keep, output, network.notes)
    programs, notes = _modes(model, example)
    found = []
    for longest in (True, False):  # the second only if the first runs into sizes that forward has written in
        ties, _ = follow(programs, literal=True, longest=longest)
        graph = _graph(model, example, programs, ties, keep, output, notes)
        found.append(probe(model, example, graph, _labels_at_literals(ties)))
        if not ties.ambiguous or found[-1].prunable == graph.prunable:
            break
    return max(found, key=lambda graph: sum(group.size for group in graph.prunable))


def _graph(
    model: nn.Module,
    example: Example,
    programs: list[Program],
    ties: Ties,
    keep: Sequence[str],
    output: Output,
    notes: list[str],
) -> ChannelGraph:
    used = {name: tensor for program in programs for name, tensor in program.tensors.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in {**named_tensors(model), **used}.items()}
    shapes |= {slot.parameter: (size,) for slot, size in ties.sizes.items() if slot.parameter not in shapes}
    _keep_by_name(ties, keep, shapes)
    unused = [name for name in named_tensors(model) if name not in used and not name.endswith("_tracked")]
    return ChannelGraph(gather(ties), shapes, describe(example), output, tuple(notes), tuple(unused))


def _modes(model: nn.Module, example: Example) -> tuple[list[Program], list[str]]:
    """Evaluation and training: a branch that runs only in training must survive the cut too."""
    programs, notes = [export(model, example)], []
    try:
        programs.append(export(model, example, train=True))
    except SecateurError as error:
        notes.append(f"training mode could not be traced, so only evaluation is covered: {error.cause}")
    return programs, notes


def _labels_at_literals(ties: Ties) -> set[tuple[Slot, int]]:
    """The slot positions whose unit passes a size that is written into the program."""
    unit_of = ties.components()
    labels = torch.cat([*ties.literals, torch.empty(0, dtype=torch.long)])
    units = np.unique(unit_of[labels[labels >= 0].numpy()])
    hit = np.isin(unit_of, units)
    return {
        (slot, int(index))
        for slot, start in ties.blocks.items()
        for index in np.flatnonzero(hit[start : start + ties.sizes[slot]])
    }


def _keep_by_name(ties: Ties, keep: Sequence[str], shapes: dict[str, tuple[int, ...]]) -> None:
    if isinstance(keep, str):
        keep = [keep]
    for pattern in keep:
        names = [name for name in shapes if _matches(name, pattern)]
        if not names:
            layers = sorted({owner(name) for name in shapes})
            close = difflib.get_close_matches(pattern, layers, n=3, cutoff=0.4) or layers[:3]
            raise UsageError(
                f"keep pattern {pattern!r} matches no layer",
                remedy=f"use a layer's name, a prefix or a pattern such as 'layer4.*'; nearest: {', '.join(close)}",
            )
        for slot in [*ties.outputs, *ties.carriers]:
            if slot.parameter in names:
                ties.keep(ties.atoms(slot, ties.sizes[slot]), Reason(f"keep={pattern!r}"))


def _matches(name: str, pattern: str) -> bool:
    layer = owner(name)
    return name.startswith(pattern + ".") or any(fnmatchcase(text, pattern) for text in (name, layer))
