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
HEADS = ("head", "attn")  # parts of the names of attributes that count attention heads or their channels
Indices = tuple[tuple[int, ...], ...]  # of each unit


def follow_widths(model: nn.Module, graph: ChannelGraph) -> list[ChannelGraph]:
    """Return graphs to probe: one with the attributes that hold a width as slots, which a cut updates, and one without.

    An attribute holds a width if a public method other than forward reads it (forward is tested by the probe), and it
    equals the width of channels that pass between parts of the module. Where several groups have this width, or the
    attribute is a list, a note says that it stays as it is. An attribute named after heads (`num_heads`) may also hold
    the number of units, if a unit is a block of channels, and forward may be the only one to read it. If no attribute
    holds a width, there is one graph.
    """
    added: dict[str, dict[Slot, Indices]] = {}  # by group: the attributes, and the indices that each unit has in them
    notes, heads = [], []
    for path, module in model.named_modules():
        for name, values, used in _integers(module):
            attribute = f"{path}.{name}".lstrip(".")
            found = [(group, one) for group in graph.prunable if used and (one := _counted(values, path, group, graph))]
            of_heads = [] if found else _heads(name, values, path, graph)
            names = [group.name for group, _ in found]
            if len(of_heads) == 1 and isinstance(vars(module)[name], int):
                added.setdefault(of_heads[0][0].name, {})[Slot(attribute, 0)] = of_heads[0][1]
                heads.append(attribute)
            elif len(found) == 1 and isinstance(vars(module)[name], int):
                added.setdefault(names[0], {})[Slot(attribute, 0)] = found[0][1]
                notes.append(f"the attribute {attribute} ({values[0]}) is set to the new width of {names[0]} by a cut")
            elif found:
                notes.append(
                    f"the attribute {attribute} ({vars(module)[name]}) has the width of {' and '.join(names)}, and its "
                    "class uses it outside forward: it stays as it is, so set it after the cut"
                )
    if heads:
        more = f" and {len(heads) - 3} more" if len(heads) > 3 else ""
        notes.append(f"the attributes {', '.join(heads[:3])}{more} count attention heads and are updated by a cut")
    groups = tuple(_with_slots(group, added.get(group.name, {})) for group in graph.groups)
    shapes = {slot.parameter: (sum(map(len, indices)),) for slots in added.values() for slot, indices in slots.items()}
    followed = replace(graph, groups=groups, shapes={**graph.shapes, **shapes}, notes=(*graph.notes, *notes))
    if not added:
        return [followed]
    note = f"the attributes {', '.join(shapes)} have the width of a group, but forward uses them otherwise: they stay"
    return [followed, replace(graph, notes=(*graph.notes, note))]


def _with_slots(group: Group, added: dict[Slot, Indices]) -> Group:
    indices = dict(zip(group.slots, group.indices, strict=True)) | added
    return replace(group, slots=tuple(indices), indices=tuple(indices.values()))


def _heads(name: str, values: tuple[int, ...], path: str, graph: ChannelGraph) -> list[tuple[Group, Indices]]:
    """Return the groups inside a module whose units are blocks of channels, and whose blocks an attribute counts.

    The attribute holds the number of blocks, or that of all channels along one axis.
    """
    prefix = path and path + "."
    found: list[tuple[Group, Indices]] = []
    if not any(part in name for part in HEADS):
        return found
    for group in graph.prunable:
        inside = all(slot.parameter.startswith(prefix) for slot in group.slots)
        if inside and path and all(len(unit) > 1 for unit in group.indices[0]):
            if group.size in values:
                found.append((group, tuple((unit,) for unit in range(group.size))))
            elif one := _counted(values, path, group, graph):
                found.append((group, one))
    return found


def _integers(module: nn.Module) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """Return the attributes of a user's module that are integers above 1, or lists of them, and if methods use them."""
    if type(module).__module__.startswith("torch."):
        return
    used: set[str] | None = None
    for name, value in vars(module).items():
        values = tuple(value) if isinstance(value, list | tuple) else (value,)
        if values and all(type(one) is int and one > 1 for one in values):
            used = _used_outside_forward(type(module)) if used is None else used
            yield name, values, name in used


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


def _counted(values: tuple[int, ...], path: str, group: Group, graph: ChannelGraph) -> Indices | None:
    """Return the indices of the group along an axis inside a module that has one of these widths.

    None if there is no such axis, or if the channels do not pass between parts of the module.
    """
    prefix = path and path + "."
    inside = [slot for slot in group.slots if slot.parameter.startswith(prefix)]
    parts = {slot.parameter.removeprefix(prefix).partition(".")[0] for slot in inside}
    if len(parts) < 2:
        return None
    indices = dict(zip(group.slots, group.indices, strict=True))
    sizes = {slot: sum(map(len, indices[slot])) for slot in inside}
    whole = (slot for slot in inside if sizes[slot] == graph.shapes[slot.parameter][slot.axis])
    return next((indices[slot] for slot in whole if sizes[slot] in values), None)
