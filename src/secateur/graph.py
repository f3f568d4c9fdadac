"""Trace: which channels a network has, which must go together, which must stay, and why."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from secateur.errors import SecateurError, UsageError
from secateur.labels import Follower
from secateur.program import Example, Program, check_finite, describe, export, named_tensors, owner, unwrap
from secateur.ties import Reason, Slot, Ties

Output = Literal["module", "graph"]


@dataclass(frozen=True)
class Group:
    """Units that sit on the same parameter axes; one unit is what must be cut together."""

    name: str
    slots: tuple[Slot, ...]
    indices: tuple[tuple[tuple[int, ...], ...], ...]  # indices[s][u]: where unit u sits along slot s
    reasons: tuple[Reason, ...] = ()  # why it is kept; empty when it may be cut
    makes: tuple[bool, ...] = ()  # for each slot: it is the output axis of a layer
    reads: tuple[bool, ...] = ()  # for each slot: it is the input axis of a layer

    @property
    def size(self) -> int:
        """How many units the group has."""
        return len(self.indices[0])

    @property
    def prunable(self) -> bool:
        return not self.reasons

    @property
    def producers(self) -> tuple[str, ...]:
        """The layers whose filters these channels are."""
        return _owners(slot for slot, make in zip(self.slots, self.makes, strict=True) if make)

    @property
    def consumers(self) -> tuple[str, ...]:
        """The layers that read these channels."""
        return _owners(slot for slot, read in zip(self.slots, self.reads, strict=True) if read)


@dataclass(frozen=True)
class ChannelGraph:
    """Every group of a network: prunable, or kept with the reason. `print(graph)` is a table."""

    groups: tuple[Group, ...]
    shapes: dict[str, tuple[int, ...]]
    example: Any  # what the network was traced with, without the values
    output: Output = "module"
    notes: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    @property
    def prunable(self) -> tuple[Group, ...]:
        return tuple(group for group in self.groups if group.prunable)

    def __getitem__(self, name: str) -> Group:
        for group in self.groups:
            if group.name == name:
                return group
        raise SecateurError(f"there is no group {name!r}", remedy=f"one of {', '.join(g.name for g in self.groups)}")

    def __str__(self) -> str:
        width = max([len(group.name) for group in self.groups], default=5)
        lines = [f"{'group':{width}}  {'units':>6}  status"]
        for group in self.groups:
            status = "prunable" if group.prunable else f"kept: {group.reasons[0]}"
            more = f" (and {len(group.reasons) - 1} more)" if len(group.reasons) > 1 else ""
            lines.append(f"{group.name:{width}}  {group.size:6}  {status}{more}")
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)


def trace(model: nn.Module, example: Example, *, keep: Sequence[str] = (), output: Output = "module") -> ChannelGraph:
    """Find every group of channels that can be cut, and for the others the reason why not.

    >>> graph = sc.trace(model, torch.zeros(1, 3, 224, 224))
    >>> print(graph)

    example: a tensor, a tuple of arguments or a dict of keyword arguments, as `forward` takes them.
    keep: layer names, prefixes or patterns (`"layer4.*"`) whose filters stay.
    output: `"module"` cuts the user's own class; `"graph"` cuts the exported program, for networks whose
        `forward` has sizes written into it or computes its weights.
    """
    from secateur.probe import probe
    from secateur.rewrite import programs_of

    if output not in ("module", "graph"):
        raise UsageError(f"output is {output!r}", remedy="use 'module' or 'graph'")
    model = unwrap(model)
    check_finite(model)
    if output == "graph":
        network = programs_of(model, example)
        programs, notes = network.programs, list(network.notes)
    else:
        programs, notes = _modes(model, example)
    ties = follow(programs, literal=output == "module")
    tensors = {name: tensor for program in programs for name, tensor in program.tensors.items()}
    tensors = {**named_tensors(model), **tensors}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    shapes |= {slot.parameter: (size,) for slot, size in ties.sizes.items() if slot.parameter not in shapes}
    _keep_by_name(ties, keep, shapes)
    groups = gather(ties)
    used = {name for program in programs for name in program.tensors}
    graph = ChannelGraph(
        groups=groups,
        shapes=shapes,
        example=describe(example),
        output=output,
        notes=tuple(notes),
        unused=tuple(name for name in named_tensors(model) if name not in used and not name.endswith("_tracked")),
    )
    return probe(model, example, graph, _labels_at_literals(ties)) if output == "module" else graph


def _modes(model: nn.Module, example: Example) -> tuple[list[Program], list[str]]:
    """Evaluation and training: a branch that runs only in training must survive the cut too."""
    programs, notes = [export(model, example)], []
    try:
        programs.append(export(model, example, train=True))
    except SecateurError as error:
        notes.append(f"training mode could not be traced, so only evaluation is covered: {error.cause}")
    return programs, notes


def follow(programs: Iterable[Program], *, literal: bool) -> Ties:
    """Run every program on labels, in one book."""
    ties = Ties()
    for program in programs:
        Follower(ties, literal).run(program)
    return ties


def gather(ties: Ties) -> tuple[Group, ...]:
    """Units from ties, groups from units with the same footprint."""
    unit_of = ties.components()
    reasons = _reasons_by_unit(ties, unit_of)
    slots = list(ties.blocks)
    wanted = {**ties.outputs, **ties.inputs, **ties.carriers}
    members: dict[int, list[tuple[int, int]]] = defaultdict(list)  # unit -> (slot number, index)
    for number, slot in enumerate(slots):
        start = ties.blocks[slot]
        for index, unit in enumerate(unit_of[start : start + ties.sizes[slot]].tolist()):
            members[unit].append((number, index))
    pieces = _pieces_by_unit(ties, unit_of)
    footprints: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for unit, places in members.items():
        footprint = tuple(dict.fromkeys(number for number, _ in places))
        if any(slots[number] in wanted for number in footprint):
            kept = unit in reasons
            footprints[(footprint, kept, () if kept else pieces.get(unit, ()))].append(unit)
    groups = []
    for units in footprints.values():
        why = dict.fromkeys(reason for unit in units for reason in reasons.get(unit, ()))
        groups.append(_group(slots, [members[unit] for unit in units], tuple(why), ties))
    order = {slot: i for i, slot in enumerate([*ties.outputs, *ties.inputs, *ties.carriers])}
    groups.sort(key=lambda g: (min(order.get(slot, len(order)) for slot in g.slots), g.indices[0][0]))
    return _named(groups)


def _group(slots: list[Slot], units: list[list[tuple[int, int]]], reasons: tuple[Reason, ...], ties: Ties) -> Group:
    numbers = sorted({number for number, _ in units[0]})
    makers = [number for number in numbers if slots[number] in ties.outputs]
    first = min(makers, key=lambda n: ties.outputs[slots[n]]) if makers else numbers[0]
    numbers.remove(first)
    numbers.insert(0, first)
    where: list[dict[int, list[int]]] = []
    for places in units:
        at: dict[int, list[int]] = defaultdict(list)
        for number, index in places:
            at[number].append(index)
        where.append(at)
    where.sort(key=lambda at: at[first])
    chosen = tuple(slots[number] for number in numbers)
    if not reasons and len(units) == 1:
        reasons = (
            Reason(f"all of {owner(chosen[0].parameter) or chosen[0].parameter} goes together: nothing would be left"),
        )
    name = owner(chosen[0].parameter) or chosen[0].parameter
    return Group(
        name=name if makers or not any(slot in ties.inputs for slot in chosen) else f"{name}:input",
        slots=chosen,
        indices=tuple(tuple(tuple(at[number]) for at in where) for number in numbers),
        reasons=reasons,
        makes=tuple(slot in ties.outputs for slot in chosen),
        reads=tuple(slot in ties.inputs for slot in chosen),
    )


def _named(groups: list[Group]) -> tuple[Group, ...]:
    """Give groups of the same layer different names: `conv1`, `conv1#2`."""
    seen: dict[str, int] = defaultdict(int)
    named = []
    for group in groups:
        seen[group.name] += 1
        count = seen[group.name]
        named.append(replace(group, name=f"{group.name}#{count}") if count > 1 else group)
    return tuple(named)


def _reasons_by_unit(ties: Ties, unit_of: NDArray[np.int64]) -> dict[int, list[Reason]]:
    reasons: dict[int, dict[Reason, None]] = defaultdict(dict)
    for labels, reason in ties.kept:
        for unit in np.unique(unit_of[labels.numpy()]).tolist():
            reasons[unit][reason] = None
    return {unit: list(found) for unit, found in reasons.items()}


def _pieces_by_unit(ties: Ties, unit_of: NDArray[np.int64]) -> dict[int, tuple[int, ...]]:
    pieces: dict[int, list[int]] = defaultdict(list)
    for number, labels in enumerate(ties.pieces):
        for unit in np.unique(unit_of[labels[labels >= 0].numpy()]).tolist():
            pieces[unit].append(number)
    return {unit: tuple(found) for unit, found in pieces.items()}


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


def _owners(slots: Iterable[Slot]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(owner(slot.parameter) for slot in slots))
