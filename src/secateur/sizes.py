"""The parameters and MACs that a network has left when so many units of each group stay, without cutting it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from secateur.cost import Cost
from secateur.errors import SecateurError, UsageError
from secateur.graph import ChannelGraph, Group
from secateur.ties import Slot

Whole = NDArray[np.int64]


class Sizes:
    """What the cut network costs, from the channel graph and the cost of the network before the cut.

    >>> sizes = Sizes(sc.trace(model, example), sc.cost(model, example))
    >>> sizes.params({"conv1": 32}), sizes.macs({"conv1": 32})  # every other group stays whole
    (11569928, 1491742720)

    Every parameter is a box whose sides shrink with the groups that sit on them, so the parameters are exact. A layer
    does its MACs once per weight and position. MACs that no parameter owns (attention) count in
    full, and so do positions that are channels themselves (a linear layer over space): there the cut network
    does less than is said here.

    For a graph with `output="graph"`, give the cost of that program before the cut: it has no unused parameters, and
    plain ones in place of computed weights.
    """

    def __init__(self, graph: ChannelGraph, cost: Cost) -> None:
        self._graph = graph
        self._place = {group.name: number for number, group in enumerate(graph.prunable)}
        self._units = np.array([group.size for group in graph.prunable], np.int64)

        # Groups may share an axis, and an axis may be partly in no group: `found` has one entry per group and slot.
        found: list[tuple[Slot, Group, Whole]] = []
        for group in graph.prunable:
            for slot, indices in zip(group.slots, group.indices, strict=True):
                if slot.parameter in cost.parameters:
                    found.append((slot, group, np.array([len(unit) for unit in indices], np.int64)))
        found.sort(key=lambda entry: entry[0])
        self._group = np.array([self._place[group.name] for _, group, _ in found], np.int64)
        self._table = np.concatenate([_most(owned) for *_, owned in found] or [np.zeros(0, np.int64)])
        self._offset = _starts([len(owned) + 1 for *_, owned in found])
        self._uneven = [(at, group.name, owned) for at, (_, group, owned) in enumerate(found) if np.ptp(owned)]

        slots = Counter(slot for slot, *_ in found)
        self._first_entry = _starts(list(slots.values()))
        full = np.array([graph.shapes[slot.parameter][slot.axis] for slot in slots], np.int64)
        self._outside = full - np.add.reduceat(self._owned(self._units), self._first_entry)

        names = Counter(slot.parameter for slot in slots)
        self._first_slot = _starts(list(names.values()))
        self._rest, self._positions = np.ones(len(names), np.int64), np.zeros(len(names), np.int64)
        self._params, self._macs = cost.params, cost.macs  # of everything that does not shrink
        for number, name in enumerate(names):
            shape, part = graph.shapes[name], cost.parameters[name]
            if prod(shape) != part.params:
                raise SecateurError(
                    f"the graph has shape {shape}, the cost {part.params} elements",
                    layer=name,
                    remedy="trace and count the same network",
                )
            self._rest[number] = prod(size for axis, size in enumerate(shape) if Slot(name, axis) not in slots)
            self._params -= part.params
            positions, over = divmod(part.macs, part.params)
            if not over:  # else forward uses only a part of the tensor, and its MACs stay in the constant
                self._positions[number] = positions
                self._macs -= part.macs

    def units(self, name: str) -> int:
        """How many units the group has before any cut."""
        return int(self._units[self._place[name]])

    def params(self, counts: Mapping[str, int]) -> int:
        """The parameters left when these groups keep so many units.

        >>> sizes.params({"conv1": 32, "layer1.0.conv1": 8})
        11537560
        """
        return self._cost(self._owned(self._checked(counts)))[0]

    def macs(self, counts: Mapping[str, int]) -> int:
        """The MACs left when these groups keep so many units.

        >>> sizes.macs({"conv1": 32, "layer1.0.conv1": 8})
        1390587904
        """
        return self._cost(self._owned(self._checked(counts)))[1]

    def exact(self, kept: Mapping[str, Sequence[int]]) -> tuple[int, int]:
        """The parameters and MACs left when exactly these units stay.

        >>> sizes.exact({"conv1": [0, 3, 5]})
        (11461555, 1199630592)

        It differs from `params` and `macs` where the units of a group own different numbers of indices: those count
        the ones with the most.
        """
        chosen = {name: sorted(set(units)) for name, units in kept.items()}
        owned = self._owned(self._checked({name: len(units) for name, units in chosen.items()}))
        for name, units in chosen.items():
            last = self._units[self._place[name]] - 1
            if units[0] < 0 or units[-1] > last:
                raise UsageError(f"the units are {units}", layer=name, remedy=f"give numbers from 0 to {last}")
        for entry, name, of_unit in self._uneven:
            if name in chosen:
                owned[entry] = of_unit[chosen[name]].sum()
        return self._cost(owned)

    def _checked(self, counts: Mapping[str, int]) -> Whole:
        """The units of every prunable group, these and the whole of the others."""
        units = self._units.copy()
        for name, count in counts.items():
            place = self._place.get(name)
            if place is None:
                reason = self._graph[name].reasons[0]
                raise SecateurError(f"the group is kept: {reason}", layer=name, remedy="leave it out")
            if not 1 <= count <= units[place]:
                remedy = f"give a number from 1 to {units[place]}"
                raise UsageError(f"{count} units cannot stay", layer=name, remedy=remedy)
            units[place] = count
        return units

    def _owned(self, units: Whole) -> Whole:
        """For each entry, the indices that so many units of its group own at most."""
        return self._table[self._offset + units[self._group]]

    def _cost(self, owned: Whole) -> tuple[int, int]:
        sides = self._outside + np.add.reduceat(owned, self._first_entry)
        elements = self._rest * np.multiply.reduceat(sides, self._first_slot)
        return self._params + int(elements.sum()), self._macs + int(elements @ self._positions)


def _most(owned: Whole) -> Whole:
    """For 0, 1, 2, ... units, how many indices they own at most."""
    return np.append(0, np.cumsum(np.sort(owned)[::-1]))


def _starts(lengths: Sequence[int]) -> Whole:
    """Where each of several runs begins that follow one another."""
    ends = np.cumsum(lengths, dtype=np.int64)
    return ends - np.asarray(lengths, np.int64)
