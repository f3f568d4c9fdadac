"""A plan: which channels stay. Plain data that can be read, stored, compared and replayed on a fresh model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from secateur.errors import SecateurError
from secateur.graph import ChannelGraph, Group, Output
from secateur.ties import Slot

SCHEMA = 1


@dataclass(frozen=True)
class PlannedGroup:
    """What stays of one group."""

    name: str
    size: int
    kept: tuple[int, ...]  # units


@dataclass(frozen=True)
class Plan:
    """The kept units of every group, and what that means for each parameter.

    >>> plan = Plan.keeping(graph, {"conv1": [0, 3, 5]})
    >>> print(plan)
    >>> Plan.from_json(plan.to_json()) == plan
    True
    """

    groups: tuple[PlannedGroup, ...]
    kept: dict[Slot, tuple[int, ...]]  # for each parameter axis that shrinks: the indices that stay
    reads: tuple[Slot, ...]  # those that are input axes of a layer: what a mask sets to zero
    shapes: dict[str, tuple[int, ...]]  # of the parameters that shrink, before the cut
    example: Any = None  # what the network was traced with, without the values
    output: Output = "module"
    schema: int = field(default=SCHEMA)

    @classmethod
    def keeping(cls, graph: ChannelGraph, kept: Mapping[str, Sequence[int]]) -> Plan:
        """Keep these units of these groups, and everything of the others."""
        planned, removed = [], dict[Slot, set[int]]()
        for name, units in kept.items():
            group = graph[name]
            _check_units(group, units)
            gone = sorted(set(range(group.size)) - set(units))
            if not gone:
                continue
            planned.append(PlannedGroup(name, group.size, tuple(sorted(units))))
            for slot, indices in zip(group.slots, group.indices, strict=True):
                removed.setdefault(slot, set()).update(index for unit in gone for index in indices[unit])
        reads = {slot for group in graph.groups for slot, read in zip(group.slots, group.reads, strict=True) if read}
        sizes = {slot: graph.shapes[slot.parameter][slot.axis] for slot in removed}
        return cls(
            groups=tuple(planned),
            kept={slot: tuple(i for i in range(sizes[slot]) if i not in removed[slot]) for slot in sorted(removed)},
            reads=tuple(slot for slot in sorted(removed) if slot in reads),
            shapes={slot.parameter: graph.shapes[slot.parameter] for slot in sorted(removed)},
            example=graph.example,
            output=graph.output,
        )

    def to_json(self) -> str:
        """The plan as text; `from_json` gives it back."""
        axes: dict[str, dict[str, list[int]]] = {}
        for slot, indices in self.kept.items():
            axes.setdefault(slot.parameter, {})[str(slot.axis)] = list(indices)
        return json.dumps(
            {
                "schema": self.schema,
                "output": self.output,
                "example": self.example,
                "groups": [{"name": g.name, "size": g.size, "kept": list(g.kept)} for g in self.groups],
                "shapes": {name: list(shape) for name, shape in self.shapes.items()},
                "axes": axes,
                "reads": [[slot.parameter, slot.axis] for slot in self.reads],
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan; a text that is not one is refused."""
        try:
            data = json.loads(text)
            schema = data["schema"]
        except (ValueError, KeyError, TypeError) as error:
            raise SecateurError(
                f"this is not a plan: {error}", remedy="give the text that Plan.to_json wrote"
            ) from error
        if schema != SCHEMA:
            raise SecateurError(
                f"the plan has schema {schema}, this version reads {SCHEMA}", remedy="use the version that wrote it"
            )
        try:
            return cls(
                groups=tuple(PlannedGroup(g["name"], int(g["size"]), _whole(g["kept"])) for g in data["groups"]),
                kept={
                    Slot(name, int(axis)): _whole(indices)
                    for name, axes in data["axes"].items()
                    for axis, indices in axes.items()
                },
                reads=tuple(Slot(name, int(axis)) for name, axis in data["reads"]),
                shapes={name: _whole(shape) for name, shape in data["shapes"].items()},
                example=data["example"],
                output=data["output"],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SecateurError(
                f"the plan is damaged: {type(error).__name__}: {error}", remedy="write it again with Plan.to_json"
            ) from error

    def __str__(self) -> str:
        width = max([len(group.name) for group in self.groups], default=5)
        lines = [f"{'group':{width}}  {'before':>6}  {'after':>6}  {'kept':>5}"]
        for group in self.groups:
            share = 100 * len(group.kept) / group.size
            lines.append(f"{group.name:{width}}  {group.size:6}  {len(group.kept):6}  {share:4.0f}%")
        return "\n".join(lines)


def random_plan(graph: ChannelGraph, kept: float = 0.5, seed: int = 0) -> Plan:
    """Keep the same fraction of every prunable group, chosen at random: for tests and trials."""
    if not 0 < kept <= 1:
        raise SecateurError(f"kept is {kept}", remedy="give the fraction of channels that stay, above 0 and at most 1")
    if not graph.prunable:
        reasons = {str(reason) for group in graph.groups for reason in group.reasons}
        raise SecateurError(
            "no group of this network can be cut: " + "; ".join(sorted(reasons)[:5]),
            remedy="try trace(..., output='graph')" if graph.output == "module" else "see print(graph)",
        )
    generator = torch.Generator().manual_seed(seed)
    chosen = {}
    for group in graph.prunable:
        count = max(1, round(group.size * kept))
        chosen[group.name] = sorted(torch.randperm(group.size, generator=generator)[:count].tolist())
    return Plan.keeping(graph, chosen)


def _check_units(group: Group, units: Sequence[int]) -> None:
    if not group.prunable:
        raise SecateurError(
            f"the group is kept: {group.reasons[0]}", layer=group.name, remedy="leave it out of the plan"
        )
    outside = [unit for unit in units if not 0 <= unit < group.size]
    if outside:
        raise SecateurError(
            f"unit {outside[0]} is out of range", layer=group.name, remedy=f"the group has units 0 to {group.size - 1}"
        )
    if not units:
        raise SecateurError(
            "the plan keeps no channel: the layer would be empty", layer=group.name, remedy="keep at least one unit"
        )


def _whole(numbers: Any) -> tuple[int, ...]:
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers):
        raise ValueError(f"expected whole numbers, found {numbers!r}"[:200])
    return tuple(numbers)
