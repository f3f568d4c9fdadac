"""From ties to groups: connected labels are units, units with the same footprint are a group."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from secateur.graph import Group
from secateur.program import owner
from secateur.ties import Reason, Slot, Ties


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
