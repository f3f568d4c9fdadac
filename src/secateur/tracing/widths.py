"""Integer attributes of the user's own modules that hold a width, such as `self.c` of a block."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from types import CodeType

from torch import nn

from secateur.channels.graph import ChannelGraph, Group
from secateur.network.modules import Slot

SILENT = {"forward", "extra_repr"}  # the probe tests forward itself


def follow_widths(model: nn.Module, graph: ChannelGraph) -> list[ChannelGraph]:
    """Return graphs to probe: one with the attributes that hold a width as slots, which a cut updates, and one without.

    An attribute holds a width if a public method other than forward reads it (forward is tested by the probe), and it
    equals the width of channels that pass between parts of the module. Where several groups have this width, or the
    attribute is a list, a note says that it stays as it is. If no attribute holds a width, there is one graph.
    """
    added: dict[str, list[tuple[Slot, Slot]]] = {}  # by group: the attribute, and the slot that it counts
    notes = []
    for path, module in model.named_modules():
        for name, values in _integers(module):
            attribute = f"{path}.{name}".lstrip(".")
            found = [(group, slot) for group in graph.prunable if (slot := _of_width(values, path, group, graph))]
            names = [group.name for group, _ in found]
            if len(found) == 1 and isinstance(vars(module)[name], int):
                added.setdefault(names[0], []).append((Slot(attribute, 0), found[0][1]))
                notes.append(f"the attribute {attribute} ({values[0]}) is set to the new width of {names[0]} by a cut")
            elif found:
                notes.append(
                    f"the attribute {attribute} ({vars(module)[name]}) has the width of {' and '.join(names)}, and its "
                    "class uses it outside forward: it stays as it is, so set it after the cut"
                )
    groups = tuple(_with_slots(group, added.get(group.name, [])) for group in graph.groups)
    shapes = {new.parameter: (graph.shapes[old.parameter][old.axis],) for pairs in added.values() for new, old in pairs}
    followed = replace(graph, groups=groups, shapes={**graph.shapes, **shapes}, notes=(*graph.notes, *notes))
    if not added:
        return [followed]
    note = f"the attributes {', '.join(shapes)} have the width of a group, but forward uses them otherwise: they stay"
    return [followed, replace(graph, notes=(*graph.notes, note))]


def _with_slots(group: Group, pairs: list[tuple[Slot, Slot]]) -> Group:
    indices = dict(zip(group.slots, group.indices, strict=True))
    indices |= {new: indices[old] for new, old in pairs}
    return replace(group, slots=tuple(indices), indices=tuple(indices.values()))


def _integers(module: nn.Module) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Return the attributes of a user's module that are integers above 1, or lists of them, and are used in methods."""
    if type(module).__module__.startswith("torch."):
        return
    used: set[str] | None = None
    for name, value in vars(module).items():
        values = tuple(value) if isinstance(value, list | tuple) else (value,)
        if values and all(type(one) is int and one > 1 for one in values):
            used = _used_outside_forward(type(module)) if used is None else used
            if name in used:
                yield name, values


def _used_outside_forward(kind: type) -> set[str]:
    """Return the names that the public methods of a class and of its bases outside torch use."""
    names: set[str] = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("torch."):
            for name, method in vars(base).items():
                if inspect.isfunction(method) and not name.startswith("_") and name not in SILENT:
                    names.update(_names(method.__code__))
    return names


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _of_width(values: tuple[int, ...], path: str, group: Group, graph: ChannelGraph) -> Slot | None:
    """Return an axis of the group inside a module that has one of these widths, if channels pass between its parts."""
    prefix = path and path + "."
    inside = [slot for slot in group.slots if slot.parameter.startswith(prefix)]
    parts = {slot.parameter.removeprefix(prefix).partition(".")[0] for slot in inside}
    if len(parts) < 2:
        return None
    sizes = {slot: sum(map(len, indices)) for slot, indices in zip(group.slots, group.indices, strict=True)}
    whole = (slot for slot in inside if sizes[slot] == graph.shapes[slot.parameter][slot.axis])
    return next((slot for slot in whole if sizes[slot] in values), None)
