"""From ties to groups: tied labels form a unit, units on the same parameter axes form a group."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from secateur.channels.graph import Group, last_unit
from secateur.channels.ties import FIXED, Reason, Ties
from secateur.network.modules import Slot, owner

T = TypeVar("T")
Members = dict[int, tuple[int, ...]]  # along one slot: for each unit its indices


def gather(ties: Ties) -> tuple[Group, ...]:
    """Return the groups that the ties define, in the order of the network."""
    unit_of = ties.components()
    reasons = _by_unit(unit_of, ties.kept)
    pieces = _by_unit(unit_of, ((labels, number) for number, labels in enumerate(ties.pieces)))
    along = {slot: unit_of[start : start + ties.sizes[slot]] for slot, start in ties.blocks.items()}
    members = {slot: _members(units) for slot, units in along.items()}
    order = {slot: i for i, slot in enumerate([*ties.outputs, *ties.inputs, *ties.per_channel])}
    groups = []
    for slots, units in _by_footprint(along):
        if any(slot in order for slot in slots):
            alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
            for unit in units:
                kept = unit in reasons
                alike[(kept, () if kept else pieces.get(unit, ()))].append(unit)
            for numbers in alike.values():
                why = dict.fromkeys(reason for number in numbers for reason in reasons.get(number, ()))
                groups.append(_group(slots, numbers, members, tuple(why), ties))
    groups.sort(key=lambda g: (min(order.get(slot, len(order)) for slot in g.slots), g.indices[0][0]))
    return _with_unique_names(groups)


def _members(units: NDArray[np.int64]) -> Members:
    """Return for each unit the indices at which it stands."""
    order = np.argsort(units, kind="stable")
    found, starts = np.unique(units[order], return_index=True)
    if len(found) == len(units):
        return {unit: (index,) for unit, index in zip(found.tolist(), order.tolist())}
    parts = np.split(order, starts[1:])
    return {unit: tuple(part.tolist()) for unit, part in zip(found.tolist(), parts)}


def _by_footprint(along: dict[Slot, NDArray[np.int64]]) -> list[tuple[list[Slot], list[int]]]:
    """Return the units that lie on the same slots, with these slots; those that lie on none are left out."""
    slots_of: list[list[Slot]] = [[]]  # by the number of a footprint
    footprint = np.zeros(1 + max((int(units.max()) for units in along.values() if len(units)), default=0), np.int64)
    for slot, units in along.items():
        present = np.unique(units)
        before = footprint[present]
        for number in np.unique(before).tolist():
            footprint[present[before == number]] = len(slots_of)
            slots_of.append([*slots_of[number], slot])
    order = np.argsort(footprint, kind="stable")
    numbers, starts = np.unique(footprint[order], return_index=True)
    parts = np.split(order, starts[1:])
    return [(slots_of[number], part.tolist()) for number, part in zip(numbers.tolist(), parts) if number]


def _by_unit(unit_of: NDArray[np.int64], entries: Iterable[tuple[Tensor, T]]) -> dict[int, tuple[T, ...]]:
    """Return for each unit the entries that concern any of its labels."""
    found: dict[int, dict[T, None]] = defaultdict(dict)
    for labels, entry in entries:
        for unit in np.unique(unit_of[labels[labels != FIXED].numpy()]).tolist():
            found[unit][entry] = None
    return {unit: tuple(entries) for unit, entries in found.items()}


def _group(
    slots: list[Slot], units: list[int], members: dict[Slot, Members], reasons: tuple[Reason, ...], ties: Ties
) -> Group:
    first = min((slot for slot in slots if slot in ties.outputs), key=ties.outputs.__getitem__, default=slots[0])
    slots = sorted(slots, key=lambda slot: slot != first)
    units = sorted(units, key=members[first].__getitem__)
    produces, consumes = (tuple(slot for slot in slots if slot in role) for role in (ties.outputs, ties.inputs))
    name = owner(first.parameter) or first.parameter
    if not reasons and len(units) == 1:
        reasons = (last_unit(name),)
    return Group(
        name=f"{name}:input" if consumes and not produces else name,
        slots=tuple(slots),
        indices=tuple(tuple(members[slot][unit] for unit in units) for slot in slots),
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
