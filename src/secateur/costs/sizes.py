"""The parameters and MACs of a network under a plan, without cutting it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from secateur.channels.graph import ChannelGraph, Group
from secateur.costs.cost import Cost
from secateur.errors import SecateurError, UsageError
from secateur.network.modules import Slot

Integers = NDArray[np.int64]


class Sizes:
    """The cost of the cut network, computed from the channel graph and the cost of the original.

    >>> sizes = Sizes(sc.trace(model, example), sc.cost(model, example))
    >>> sizes.params({"conv1": 32}), sizes.macs({"conv1": 32})  # every other group keeps all units
    (11569928, 1491742720)

    Every parameter is a box whose sides shrink with the groups on them, so the number of parameters is exact. A layer
    has one MAC per weight and position. Too high are only MACs that belong to no parameter (attention) and positions
    that are channels themselves (a linear layer over space), which count in full.

    Args:
        graph: the channel groups. With `output="graph"`, `cost` must be that of the uncut program, which has no
            unused parameters, and plain parameters instead of computed weights.
        cost: the cost of the original network.
    """

    def __init__(self, graph: ChannelGraph, cost: Cost) -> None:
        self.graph = graph
        self._number = {group.name: number for number, group in enumerate(graph.prunable)}
        self._units = np.array([group.size for group in graph.prunable], np.int64)

        # Groups can share an axis, and an axis can lie partly outside all groups: one entry per group and slot.
        entries: list[tuple[Slot, Group, Integers]] = []
        for group in graph.prunable:
            for slot, indices in zip(group.slots, group.indices, strict=True):
                if slot.parameter in cost.parameters:
                    entries.append((slot, group, np.array([len(unit) for unit in indices], np.int64)))
        entries.sort(key=lambda entry: entry[0])
        self._group = np.array([self._number[group.name] for _, group, _ in entries], np.int64)
        self._most = np.concatenate([_most_indices(owned) for *_, owned in entries] or [np.zeros(0, np.int64)])
        self._offset = _starts([len(owned) + 1 for *_, owned in entries])
        self._uneven = [(at, group.name, owned) for at, (_, group, owned) in enumerate(entries) if np.ptp(owned)]

        slots = Counter(slot for slot, *_ in entries)
        self._slots = tuple(slots)
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
                    remedy="pass the graph and the cost of the same network",
                )
            self._rest[number] = prod(size for axis, size in enumerate(shape) if Slot(name, axis) not in slots)
            self._params -= part.params
            positions, remainder = divmod(part.macs, part.params)
            if not remainder:  # else forward uses only a part of the tensor, and its MACs count in full
                self._positions[number] = positions
                self._macs -= part.macs

    def units(self, name: str) -> int:
        """Return the number of units of a group before any cut."""
        return int(self._units[self._number[name]])

    def params(self, counts: Mapping[str, int]) -> int:
        """Return the number of parameters when groups keep the given numbers of units.

        >>> sizes.params({"conv1": 32, "layer1.0.conv1": 8})
        11537560
        """
        return self._cost(self._owned(self._checked(counts)))[0]

    def macs(self, counts: Mapping[str, int]) -> int:
        """Return the number of MACs when groups keep the given numbers of units.

        >>> sizes.macs({"conv1": 32, "layer1.0.conv1": 8})
        1390587904
        """
        return self._cost(self._owned(self._checked(counts)))[1]

    def sides(self, counts: Mapping[str, int]) -> dict[Slot, int]:
        """Return the size of every parameter axis that groups lie on, when they keep the given numbers of units.

        >>> sizes.sides({"conv1": 32})[Slot("conv1.weight", 0)]
        32
        """
        sides = self._outside + np.add.reduceat(self._owned(self._checked(counts)), self._first_entry)
        return dict(zip(self._slots, sides.tolist(), strict=True))

    def exact(self, kept: Mapping[str, Sequence[int]]) -> tuple[int, int]:
        """Return the numbers of parameters and MACs when groups keep exactly the given units.

        >>> sizes.exact({"conv1": [0, 3, 5]})
        (11461555, 1199630592)

        Where the units of a group own different numbers of indices, `params` and `macs` assume the largest units.
        """
        chosen = {name: sorted(set(units)) for name, units in kept.items()}
        owned = self._owned(self._checked({name: len(units) for name, units in chosen.items()}))
        for name, units in chosen.items():
            last = self.units(name) - 1
            if units[0] < 0 or units[-1] > last:
                raise UsageError(f"the units are {units}", layer=name, remedy=f"pass numbers from 0 to {last}")
        for entry, name, of_unit in self._uneven:
            if name in chosen:
                owned[entry] = of_unit[chosen[name]].sum()
        return self._cost(owned)

    def _checked(self, counts: Mapping[str, int]) -> Integers:
        """Return the number of kept units of every prunable group."""
        units = self._units.copy()
        for name, count in counts.items():
            number = self._number.get(name)
            if number is None:
                reason = self.graph[name].reasons[0]
                raise SecateurError(f"the group is kept: {reason}", layer=name, remedy="leave it out")
            if not 1 <= count <= units[number]:
                remedy = f"pass a number from 1 to {units[number]}"
                raise UsageError(f"the group cannot keep {count} units", layer=name, remedy=remedy)
            units[number] = count
        return units

    def _owned(self, units: Integers) -> Integers:
        """Return for each entry the number of indices that the kept units of its group own at most."""
        return self._most[self._offset + units[self._group]]

    def _cost(self, owned: Integers) -> tuple[int, int]:
        sides = self._outside + np.add.reduceat(owned, self._first_entry)
        elements = self._rest * np.multiply.reduceat(sides, self._first_slot)
        return self._params + int(elements.sum()), self._macs + int(elements @ self._positions)


def _most_indices(owned: Integers) -> Integers:
    """Return for 0, 1, 2, ... units the number of indices that they own at most."""
    return np.append(0, np.cumsum(np.sort(owned)[::-1]))


def _starts(lengths: Sequence[int]) -> Integers:
    """Return the start of each of several runs that follow one another."""
    return np.cumsum(lengths, dtype=np.int64) - np.asarray(lengths, np.int64)
