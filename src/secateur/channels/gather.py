"""From ties to groups: tied labels form a unit, units on the same parameter axes form a group."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from secateur.channels.graph import Group
from secateur.channels.ties import FIXED, Reason, Ties
from secateur.network.modules import Slot, owner

T = TypeVar("T")
Unit = dict[Slot, list[int]]  # for each slot the indices that belong to the unit


def gather(ties: Ties) -> tuple[Group, ...]:
    """Return the groups that the ties define, in the order of the network."""
    unit_of = ties.components()
    reasons = _by_unit(unit_of, ties.kept)
    pieces = _by_unit(unit_of, ((labels, number) for number, labels in enumerate(ties.pieces)))
    units: dict[int, Unit] = defaultdict(lambda: defaultdict(list))
    for slot, start in ties.blocks.items():
        for index, unit in enumerate(unit_of[start : start + ties.sizes[slot]].tolist()):
            units[unit][slot].append(index)
    order = {slot: i for i, slot in enumerate([*ties.outputs, *ties.inputs, *ties.per_channel])}
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, unit in units.items():
        if any(slot in order for slot in unit):
            kept = number in reasons
            alike[(tuple(unit), kept, () if kept else pieces.get(number, ()))].append(number)
    groups = []
    for numbers in alike.values():
        why = dict.fromkeys(reason for number in numbers for reason in reasons.get(number, ()))
        groups.append(_group([units[number] for number in numbers], tuple(why), ties))
    groups.sort(key=lambda g: (min(order.get(slot, len(order)) for slot in g.slots), g.indices[0][0]))
    return _with_unique_names(groups)


def _by_unit(unit_of: NDArray[np.int64], entries: Iterable[tuple[Tensor, T]]) -> dict[int, tuple[T, ...]]:
    """Return for each unit the entries that concern any of its labels."""
    found: dict[int, dict[T, None]] = defaultdict(dict)
    for labels, entry in entries:
        for unit in np.unique(unit_of[labels[labels != FIXED].numpy()]).tolist():
            found[unit][entry] = None
    return {unit: tuple(entries) for unit, entries in found.items()}


def _group(units: list[Unit], reasons: tuple[Reason, ...], ties: Ties) -> Group:
    slots = list(units[0])
    first = min((slot for slot in slots if slot in ties.outputs), key=ties.outputs.__getitem__, default=slots[0])
    slots.sort(key=lambda slot: slot != first)
    units.sort(key=lambda unit: unit[first])
    produces, consumes = (tuple(slot for slot in slots if slot in role) for role in (ties.outputs, ties.inputs))
    name = owner(first.parameter) or first.parameter
    if not reasons and len(units) == 1:
        reasons = (Reason(f"all channels of {name} are one unit: without it nothing would be left"),)
    return Group(
        name=f"{name}:input" if consumes and not produces else name,
        slots=tuple(slots),
        indices=tuple(tuple(tuple(unit[slot]) for unit in units) for slot in slots),
        reasons=reasons,
        produces=produces,
        consumes=consumes,
    )


def _with_unique_names(groups: list[Group]) -> tuple[Group, ...]:
    """Number the groups of one layer: `conv1`, `conv1#2`."""
    seen: Counter[str] = Counter()
    named = []
    for group in groups:
        seen[group.name] += 1
        count = seen[group.name]
        named.append(replace(group, name=f"{group.name}#{count}") if count > 1 else group)
    return tuple(named)
