"""Channel graphs without a network: tensors with random groups on their axes, and their cost."""

from __future__ import annotations

from itertools import pairwise, product
from math import prod

import numpy as np
from hypothesis import strategies as st

from secateur.channels.graph import ChannelGraph, Group
from secateur.costs.cost import Cost, LayerCost
from secateur.network.modules import Slot


def chain(widths: list[int], *, kernel: int = 9, positions: int = 64, more_macs: int = 0) -> tuple[ChannelGraph, Cost]:
    """Return a chain of convolutions with biases: group i is the output of layer i and the input of the next."""
    shapes: dict[str, tuple[int, ...]] = {}
    groups = []
    for number, (before, after) in enumerate(pairwise(widths)):
        shapes |= {f"{number}.weight": (after, before, kernel), f"{number}.bias": (after,)}
        slots = (Slot(f"{number}.weight", 0), Slot(f"{number}.bias", 0), Slot(f"{number + 1}.weight", 1))
        if number < len(widths) - 2:
            groups.append(group(str(number), dict.fromkeys(slots, tuple((unit,) for unit in range(after)))))
    work = {name: positions if name.endswith("weight") else 0 for name in shapes}
    return ChannelGraph(tuple(groups), shapes, None), cost_of(shapes, work, more_macs)


def group(name: str, indices: dict[Slot, tuple[tuple[int, ...], ...]]) -> Group:
    """Return a prunable group with the given indices of its units along each slot."""
    return Group(name, tuple(indices), tuple(indices.values()))


def cost_of(shapes: dict[str, tuple[int, ...]], positions: dict[str, int], more_macs: int = 0) -> Cost:
    """Return the cost of tensors that are each multiplied at the given number of positions."""
    parts = {name: LayerCost(prod(shapes[name]), positions[name] * prod(shapes[name])) for name in positions}
    params, macs = sum(part.params for part in parts.values()), sum(part.macs for part in parts.values())
    return Cost(params, macs + more_macs, {}, parts)


@st.composite
def networks(draw: st.DrawFn) -> tuple[ChannelGraph, Cost]:
    """Return tensors whose axes belong to several groups unevenly, with indices in no group, and some buffers."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.integers(2, 9), min_size=1, max_size=5))
    lengths: dict[Slot, int] = {}
    indices: list[dict[Slot, list[tuple[int, ...]]]] = [{} for _ in sizes]
    shapes: dict[str, tuple[int, ...]] = {}
    for tensor in range(draw(st.integers(1, 6))):
        for axis in range(int(rng.integers(1, 4))):
            slot = Slot(f"t{tensor}", axis)
            lengths[slot] = int(rng.integers(1, 4))  # indices in no group
            for number in rng.permutation(len(sizes))[: rng.integers(0, 3)].tolist():
                owned = rng.integers(1, rng.integers(2, 5), sizes[number])
                starts = lengths[slot] + np.cumsum(owned) - owned
                indices[number][slot] = [tuple(range(s, s + n)) for s, n in zip(starts.tolist(), owned.tolist())]
                lengths[slot] += int(owned.sum())
        axes = [slot for slot in lengths if slot.parameter == f"t{tensor}"]
        shapes[f"t{tensor}"] = tuple(lengths[slot] for slot in axes)
    found = [{slot: tuple(units) for slot, units in at.items()} for at in indices if at]
    groups = tuple(group(f"g{number}", at) for number, at in enumerate(found))
    parameters = [name for name in shapes if name == "t0" or rng.random() < 0.8]  # the others are buffers
    positions = {name: int(rng.integers(0, 50)) for name in parameters}
    return ChannelGraph(groups, shapes, None), cost_of(shapes, positions, int(rng.integers(0, 100)))


def counted(graph: ChannelGraph, cost: Cost, kept: dict[str, list[int]]) -> tuple[int, int]:
    """The oracle: check for every element of every tensor whether one of its indices is removed."""
    params, macs = 0, cost.macs - sum(part.macs for part in cost.parameters.values())
    for name, part in cost.parameters.items():
        removed: list[set[int]] = [set() for _ in graph.shapes[name]]
        for one in graph.groups:
            for slot, indices in zip(one.slots, one.indices, strict=True):
                if slot.parameter == name:
                    for unit in set(range(one.size)) - set(kept.get(one.name, range(one.size))):
                        removed[slot.axis].update(indices[unit])
        left = 0
        for index in product(*map(range, graph.shapes[name])):
            left += not any(i in away for i, away in zip(index, removed))
        params += left
        macs += left * (part.macs // part.params)
    return params, macs
