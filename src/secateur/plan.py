"""A plan: which channels stay. Plain data that can be read, stored, compared and replayed on a fresh model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from secateur.errors import SecateurError
from secateur.graph import ChannelGraph, Group, Output
from secateur.ties import Slot

SCHEMA = 2  # 2 added scales


@dataclass(frozen=True)
class PlannedGroup:
    """What stays of one group."""

    name: str
    size: int
    kept: tuple[int, ...]  # units
    scales: tuple[float, ...] = ()  # what the layers that read each kept unit multiply it by; empty: nothing


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
    scales: dict[Slot, tuple[float, ...]]  # for some of the reads: a factor for every index that stays
    shapes: dict[str, tuple[int, ...]]  # of the parameters that shrink, before the cut
    example: Any = None  # what the network was traced with, without the values
    output: Output = "module"
    schema: int = field(default=SCHEMA)

    @classmethod
    def keeping(
        cls,
        graph: ChannelGraph,
        kept: Mapping[str, Sequence[int]],
        scales: Mapping[str, Sequence[float]] | None = None,
    ) -> Plan:
        """Keep these units of these groups, and everything of the others.

        scales: for a group, one factor for each kept unit, by which the layers that read it are multiplied.
        """
        planned, removed = [], dict[Slot, set[int]]()
        factors: dict[Slot, dict[int, float]] = {}
        for name, units in kept.items():
            group = graph[name]
            _check_units(group, units)
            weights = _check_scales(group, units, (scales or {}).get(name))
            gone = sorted(set(range(group.size)) - set(units))
            if not gone and not weights:
                continue
            ordered = sorted(units)
            planned.append(
                PlannedGroup(name, group.size, tuple(ordered), tuple(weights[u] for u in ordered if weights))
            )
            for slot, indices, read in zip(group.slots, group.indices, group.reads, strict=True):
                removed.setdefault(slot, set()).update(index for unit in gone for index in indices[unit])
                if read and weights:
                    factors.setdefault(slot, {}).update((i, weights[u]) for u in ordered for i in indices[u])
        reads = {slot for group in graph.groups for slot, read in zip(group.slots, group.reads, strict=True) if read}
        sizes = {slot: graph.shapes[slot.parameter][slot.axis] for slot in removed}
        stays = {slot: tuple(i for i in range(sizes[slot]) if i not in removed[slot]) for slot in sorted(removed)}
        return cls(
            groups=tuple(planned),
            kept=stays,
            scales={slot: tuple(by.get(i, 1.0) for i in stays[slot]) for slot, by in sorted(factors.items())},
            reads=tuple(slot for slot in sorted(removed) if slot in reads),
            shapes={slot.parameter: graph.shapes[slot.parameter] for slot in sorted(removed)},
            example=graph.example,
            output=graph.output,
        )

    def then(self, second: Plan) -> Plan:
        """This plan, and then another one on the network it left: one plan for the original network.

        >>> sc.cut(model, first.then(second))  # as sc.cut(sc.cut(model, first), second)
        """
        if self.output != "module" or second.output != "module":
            raise SecateurError("only plans with output 'module' follow each other", remedy="plan in one step")
        for name, shape in second.shapes.items():
            if name in self.shapes and shape != self._shape_after(name):
                raise SecateurError(
                    f"the second plan expects shape {shape}, the first one leaves {self._shape_after(name)}",
                    layer=name,
                    remedy="make the second plan for the network that the first one leaves",
                )
        kept, scales = dict(self.kept), dict(self.scales)
        for slot, indices in second.kept.items():
            before = self.kept.get(slot, range(second.shapes[slot.parameter][slot.axis]))
            kept[slot] = tuple(before[i] for i in indices)
            if slot in self.scales or slot in second.scales:
                old = self.scales.get(slot, (1.0,) * len(before))
                new = second.scales.get(slot, (1.0,) * len(indices))
                scales[slot] = tuple(old[i] * factor for i, factor in zip(indices, new, strict=True))
        return replace(
            self,
            groups=_joined(self.groups, second.groups),
            kept=dict(sorted(kept.items())),
            scales=dict(sorted(scales.items())),
            reads=tuple(sorted({*self.reads, *second.reads})),
            shapes=dict(sorted({**second.shapes, **self.shapes}.items())),
        )

    def _shape_after(self, name: str) -> tuple[int, ...]:
        axes = {slot.axis: len(indices) for slot, indices in self.kept.items() if slot.parameter == name}
        return tuple(axes.get(axis, size) for axis, size in enumerate(self.shapes[name]))

    def to_json(self) -> str:
        """The plan as text; `from_json` gives it back."""
        return json.dumps(
            {
                "schema": self.schema,
                "output": self.output,
                "example": self.example,
                "groups": [
                    {"name": g.name, "size": g.size, "kept": list(g.kept), "scales": list(g.scales)}
                    for g in self.groups
                ],
                "shapes": {name: list(shape) for name, shape in self.shapes.items()},
                "axes": _by_parameter(self.kept),
                "scales": _by_parameter(self.scales),
                "reads": [[slot.parameter, slot.axis] for slot in self.reads],
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan; a text that is not one is refused."""
        try:
            data = json.loads(text)
            schema = data["schema"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise SecateurError(
                f"this is not a plan: {error}", remedy="give the text that Plan.to_json wrote"
            ) from error
        if schema != SCHEMA:
            raise SecateurError(
                f"the plan has schema {schema}, this version reads {SCHEMA}", remedy="use the version that wrote it"
            )
        try:
            return cls(
                groups=tuple(
                    PlannedGroup(g["name"], int(g["size"]), _whole(g["kept"]), _real(g["scales"]))
                    for g in data["groups"]
                ),
                kept={slot: _whole(indices) for slot, indices in _by_slot(data["axes"])},
                scales={slot: _real(factors) for slot, factors in _by_slot(data["scales"])},
                reads=tuple(Slot(name, int(axis)) for name, axis in data["reads"]),
                shapes={name: _whole(shape) for name, shape in data["shapes"].items()},
                example=data["example"],
                output=data["output"],
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
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
    graph.check_prunable()
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


def _joined(first: tuple[PlannedGroup, ...], second: tuple[PlannedGroup, ...]) -> tuple[PlannedGroup, ...]:
    """The groups of two plans, units counted as in the original network."""
    groups = {group.name: group for group in first}
    for group in second:
        before = groups.get(group.name)
        if before is None:
            groups[group.name] = group
            continue
        old = before.scales or (1.0,) * len(before.kept)
        new = group.scales or (1.0,) * len(group.kept)
        scales = tuple(old[i] * factor for i, factor in zip(group.kept, new, strict=True))
        groups[group.name] = PlannedGroup(
            group.name,
            before.size,
            tuple(before.kept[i] for i in group.kept),
            scales if before.scales or group.scales else (),
        )
    return tuple(groups.values())


def _check_scales(group: Group, units: Sequence[int], scales: Sequence[float] | None) -> dict[int, float]:
    """The factor of each unit; nothing if all are one."""
    if scales is None or all(scale == 1 for scale in scales):
        return {}
    if len(scales) != len(units) or not all(math.isfinite(scale) for scale in scales):
        raise SecateurError(
            f"{len(scales)} scales for {len(units)} kept units, or one that is not finite",
            layer=group.name,
            remedy="give one finite factor for each kept unit",
        )
    return dict(zip(units, map(float, scales), strict=True))


def _by_parameter(slots: Mapping[Slot, Sequence[Any]]) -> dict[str, dict[str, list[Any]]]:
    axes: dict[str, dict[str, list[Any]]] = {}
    for slot, values in slots.items():
        axes.setdefault(slot.parameter, {})[str(slot.axis)] = list(values)
    return axes


def _by_slot(axes: Mapping[str, Mapping[str, Any]]) -> list[tuple[Slot, Any]]:
    return [(Slot(name, int(axis)), values) for name, by in axes.items() for axis, values in by.items()]


def _real(numbers: Any) -> tuple[float, ...]:
    if not all(isinstance(n, int | float) and not isinstance(n, bool) and math.isfinite(n) for n in numbers):
        raise ValueError(f"expected finite numbers, found {numbers!r}"[:200])
    return tuple(float(n) for n in numbers)


def _whole(numbers: Any) -> tuple[int, ...]:
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers):
        raise ValueError(f"expected whole numbers, found {numbers!r}"[:200])
    return tuple(numbers)
