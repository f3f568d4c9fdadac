"""The channel graph of a network as plain data, so that a saved network need not be traced again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

from secateur.channels.graph import ChannelGraph, Group
from secateur.channels.ties import Reason
from secateur.channels.topology import Layer
from secateur.network.modules import Slot

LARGEST = 1 << 24  # indices along an axis
Indices = tuple[tuple[int, ...], ...]


def as_plain(graph: ChannelGraph) -> dict[str, Any]:
    """Return a graph as data that JSON can hold, which `from_plain` reads.

    >>> from_plain(as_plain(graph)) == graph
    True
    """
    return {
        "groups": [_plain_group(group) for group in graph.groups],
        "shapes": {name: list(shape) for name, shape in graph.shapes.items()},
        "example": graph.example,
        "output": graph.output,
        "notes": list(graph.notes),
        "unused": list(graph.unused),
        "free_outputs": list(graph.free_outputs),
        "layers": [asdict(layer) | {"inputs": list(layer.inputs)} for layer in graph.layers],
    }


def from_plain(data: Mapping[str, Any]) -> ChannelGraph:
    """Return the graph; ValueError, KeyError or TypeError if the data is not one."""
    shapes = {str(name): tuple(map(int, shape)) for name, shape in data["shapes"].items()}
    if data["output"] not in ("module", "graph"):
        raise ValueError(f"its output is {data['output']!r}")
    return ChannelGraph(
        groups=tuple(_group(one, shapes) for one in data["groups"]),
        shapes=shapes,
        example=data["example"],
        output=data["output"],
        notes=_texts(data["notes"]),
        unused=_texts(data["unused"]),
        free_outputs=_texts(data["free_outputs"]),
        layers=tuple(Layer(**one | {"inputs": tuple(map(int, one["inputs"]))}) for one in data["layers"]),
    )


def _plain_group(group: Group) -> dict[str, Any]:
    number = {slot: place for place, slot in enumerate(group.slots)}
    return {
        "name": group.name,
        "size": group.size,
        "slots": [[slot.parameter, slot.axis] for slot in group.slots],
        "indices": [_plain_indices(indices) for indices in group.indices],
        "reasons": [asdict(reason) for reason in group.reasons],
        "produces": [number[slot] for slot in group.produces],
        "consumes": [number[slot] for slot in group.consumes],
        "from_input": group.from_input,
    }


def _group(data: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> Group:
    slots = tuple(Slot(str(name), int(axis)) for name, axis in data["slots"])
    if not 0 < data["size"] <= max(shapes[slot.parameter][slot.axis] for slot in slots):
        raise ValueError(f"{data['name']} has {data['size']} units")
    indices = tuple(_indices(one, int(data["size"])) for one in data["indices"])
    for slot, own in zip(slots, indices, strict=True):
        flat = list(chain.from_iterable(own))
        if len(own) != data["size"] or len(set(flat)) != len(flat):
            raise ValueError(
                f"the units of {data['name']} are not {data['size']} different ones along {slot.parameter}"
            )
        if flat and not 0 <= min(flat) <= max(flat) < shapes[slot.parameter][slot.axis]:
            raise ValueError(f"an index of {data['name']} lies outside of {slot.parameter}")
    return Group(
        name=str(data["name"]),
        slots=slots,
        indices=indices,
        reasons=tuple(Reason(**reason) for reason in data["reasons"]),
        produces=tuple(slots[place] for place in data["produces"]),
        consumes=tuple(slots[place] for place in data["consumes"]),
        from_input=bool(data["from_input"]),
    )


def _plain_indices(indices: Indices) -> dict[str, int] | list[list[int]]:
    """Return the indices of units along a slot; if they follow each other, only the first one and their number."""
    width, flat = len(indices[0]), list(chain.from_iterable(indices))
    if width and all(len(own) == width for own in indices) and flat == list(range(flat[0], flat[0] + len(flat))):
        return {"first": flat[0], "each": width}
    return [list(own) for own in indices]


def _indices(data: Mapping[str, int] | Sequence[Sequence[int]], size: int) -> Indices:
    if isinstance(data, Mapping):
        first, each = int(data["first"]), int(data["each"])
        if not 0 < each <= LARGEST // size:
            raise ValueError(f"{size} units have {each} indices each")
        return tuple(tuple(range(first + unit * each, first + (unit + 1) * each)) for unit in range(size))
    return tuple(tuple(map(int, own)) for own in data)


def _texts(data: Sequence[Any]) -> tuple[str, ...]:
    return tuple(map(str, data))
