"""A plan: which channels of a network are kept. Plain data that can be printed, stored, compared and applied again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from secateur.channels.graph import ChannelGraph, Group, Output, last_unit
from secateur.checks import known_keywords
from secateur.deprecation import renamed_fields
from secateur.errors import SecateurError, explained
from secateur.network.modules import Slot, owner
from secateur.rows import frame, html
from secateur.tables import percent

SCHEMA = 3  # 2 added scales; 3 says "consumes" where 2 says "reads"

SELECTED = "kept_inputs"  # the buffer of a layer that selects its inputs


@dataclass(frozen=True)
class PlannedGroup:
    """The kept units of one group.

    Attributes:
        name: the name of the group.
        size: its number of units before the cut.
        kept: the units that are kept.
        scales: a factor for each kept unit, by which the consumers of the unit are multiplied; empty if all are 1.
    """

    name: str
    size: int
    kept: tuple[int, ...]
    scales: tuple[float, ...] = ()


@renamed_fields(reads="consumes")
@dataclass(frozen=True)
class Plan:
    """The kept units of every group, and the kept indices of each parameter axis that follow from them.

    >>> plan = sc.Plan.keeping(graph, {"conv1": [0, 3, 5]})
    >>> print(plan)
    >>> sc.Plan.from_json(plan.to_json()) == plan
    True

    Attributes:
        groups: the groups that shrink.
        kept: for each parameter axis that shrinks, the indices that are kept.
        consumes: those of these axes that are the input axis of a layer, where a mask sets zeros.
        scales: for some of the consuming axes, a factor for each kept index.
        shapes: the shapes of the parameters that shrink, before the cut.
        example: shapes and types of the inputs that the network was traced with, as plain data.
        output: what a cut returns: `"module"` or `"graph"`.
        selects: those of the consuming axes along which the network's own inputs lie: the layer selects the kept ones.
        scope: the submodules that were pruned, if it was not the whole model; `example` is an input of theirs.
        free_outputs: outputs of the network that need not keep their channels, and are not compared.
        schema: the version of the JSON format.
    """

    groups: tuple[PlannedGroup, ...]
    kept: dict[Slot, tuple[int, ...]]
    consumes: tuple[Slot, ...]
    scales: dict[Slot, tuple[float, ...]]
    shapes: dict[str, tuple[int, ...]]
    example: Any = None
    output: Output = "module"
    selects: tuple[Slot, ...] = ()
    free_outputs: tuple[str, ...] = ()
    scope: tuple[str, ...] = ()
    schema: int = SCHEMA

    @classmethod
    def keeping(
        cls,
        graph: ChannelGraph,
        kept: Mapping[str, Sequence[int]],
        scales: Mapping[str, Sequence[float]] | None = None,
    ) -> Plan:
        """Return a plan that keeps the given units of the given groups, and the other groups as they are.

        >>> plan = sc.Plan.keeping(graph, {"conv1": [0, 3, 5]})

        Args:
            graph: the channel groups of the network, from `trace`.
            kept: for each group to cut, the units to keep.
            scales: for some of these groups, a factor for each kept unit, by which its consumers are multiplied.
        """
        planned = []
        removed: dict[Slot, set[int]] = {}
        factors: dict[Slot, dict[int, float]] = {}
        for name, units in kept.items():
            group = graph[name]
            _check_units(group, units)
            scale = _scale_by_unit(group, units, (scales or {}).get(name))
            gone = sorted(set(range(group.size)) - set(units))
            if not gone and not scale:
                continue
            units = tuple(sorted(units))
            planned.append(PlannedGroup(name, group.size, units, tuple(scale[unit] for unit in units if scale)))
            for slot, indices in zip(group.slots, group.indices, strict=True):
                removed.setdefault(slot, set()).update(index for unit in gone for index in indices[unit])
                if scale and slot in group.consumes:
                    factors.setdefault(slot, {}).update((i, scale[unit]) for unit in units for i in indices[unit])
        consumes = {slot for group in graph.groups for slot in group.consumes}
        sizes = {slot: graph.shapes[slot.parameter][slot.axis] for slot in sorted(removed)}
        stays = {slot: tuple(sorted(set(range(size)) - removed[slot])) for slot, size in sizes.items()}
        return cls(
            groups=tuple(planned),
            kept=stays,
            consumes=tuple(slot for slot in stays if slot in consumes),
            scales={slot: tuple(by.get(i, 1.0) for i in stays[slot]) for slot, by in sorted(factors.items())},
            shapes={slot.parameter: graph.shapes[slot.parameter] for slot in stays},
            example=graph.example,
            output=graph.output,
            selects=tuple(
                slot for name in kept if graph[name].from_input for slot in graph[name].slots if slot in stays
            ),
            free_outputs=graph.free_outputs,
            scope=graph.scope,
        )

    def then(self, second: Plan) -> Plan:
        """Return one plan for the original network that equals this plan followed by another on the cut network.

        >>> sc.cut(model, first.then(second))  # equals sc.cut(sc.cut(model, first), second)
        """
        if self.output != "module" or second.output != "module":
            raise SecateurError("only plans with output='module' can be combined", remedy="make one plan instead")
        for name, shape in second.shapes.items():
            if name in self.shapes and shape != self.shape_after(name):
                raise SecateurError(
                    f"the second plan expects shape {shape}, the first one leaves {self.shape_after(name)}",
                    layer=name,
                    remedy="make the second plan for the network that the first one leaves",
                )
        kept, scales = dict(self.kept), dict(self.scales)
        for slot, indices in second.kept.items():
            before = self.kept.get(slot, range(second.shapes[slot.parameter][slot.axis]))
            kept[slot] = tuple(before[i] for i in indices)
            if product := _product(self.scales.get(slot, ()), second.scales.get(slot, ()), indices):
                scales[slot] = product
        groups = {group.name: group for group in self.groups}
        for group in second.groups:
            if first := groups.get(group.name):  # units are counted as in the original network
                units = tuple(first.kept[i] for i in group.kept)
                group = replace(first, kept=units, scales=_product(first.scales, group.scales, group.kept))
            groups[group.name] = group
        return replace(
            self,
            groups=tuple(groups.values()),
            kept=dict(sorted(kept.items())),
            consumes=tuple(sorted({*self.consumes, *second.consumes})),
            selects=tuple(sorted({*self.selects, *second.selects})),
            scales=dict(sorted(scales.items())),
            free_outputs=tuple(dict.fromkeys([*self.free_outputs, *second.free_outputs])),
            scope=tuple(dict.fromkeys([*self.scope, *second.scope])),
            shapes=dict(sorted({**second.shapes, **self.shapes}.items())),
        )

    def graph_after(self, graph: ChannelGraph) -> ChannelGraph:
        """Return the channel graph of the cut network, without tracing it again.

        >>> sc.prune(small, images, budget={"macs": "50%"}, graph=plan.graph_after(graph))

        Args:
            graph: the graph that the plan was made with.
        """
        position = {slot: {index: i for i, index in enumerate(kept)} for slot, kept in self.kept.items()}
        units = {group.name: group.kept for group in self.groups}
        groups = []
        for group in graph.groups:
            kept, indices = units.get(group.name, range(group.size)), []
            for slot, before in zip(group.slots, group.indices, strict=True):
                after = position.get(slot)
                indices.append(tuple(tuple(after[i] for i in before[unit]) if after else before[unit] for unit in kept))
            reasons = (last_unit(group.name),) if group.prunable and len(kept) == 1 else group.reasons
            groups.append(replace(group, indices=tuple(indices), reasons=reasons))
        shapes = graph.shapes | {name: self.shape_after(name) for name in self.shapes}
        shapes |= {f"{owner(slot.parameter)}.{SELECTED}": (len(self.kept[slot]),) for slot in self.selects}
        return replace(graph, groups=tuple(groups), shapes=shapes)

    def shape_after(self, name: str) -> tuple[int, ...]:
        """Return the shape of a parameter after the cut."""
        axes = {slot.axis: len(indices) for slot, indices in self.kept.items() if slot.parameter == name}
        return tuple(axes.get(axis, size) for axis, size in enumerate(self.shapes[name]))

    def check_shape(self, name: str, found: tuple[int, ...] | None) -> None:
        """Raise an error if a parameter of a network has another shape than the plan expects; None if it is missing."""
        if found != self.shapes[name]:
            has = f"has {name} of shape {found}" if found else f"has no {name}"
            raise SecateurError(
                f"the plan is for another network: it expects {name} of shape {self.shapes[name]}, this network {has}",
                layer=name,
                remedy="use the plan with the network that it was made for, before any cut",
            )

    def to_json(self) -> str:
        """Return the plan as JSON text, which `from_json` reads."""
        return json.dumps(
            {
                "schema": self.schema,
                "output": self.output,
                "example": self.example,
                "groups": [asdict(group) for group in self.groups],
                "shapes": self.shapes,
                "axes": _by_parameter(self.kept),
                "scales": _by_parameter(self.scales),
                "consumes": [[slot.parameter, slot.axis] for slot in self.consumes],
                "selects": [[slot.parameter, slot.axis] for slot in self.selects],
                **({"free_outputs": list(self.free_outputs)} if self.free_outputs else {}),
                **({"scope": list(self.scope)} if self.scope else {}),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan that `to_json` wrote, also in version 0.1."""
        with explained("this is not a plan", remedy="pass the text of Plan.to_json"):
            data = json.loads(text)
            schema = data["schema"]
        if schema not in (2, SCHEMA):
            raise SecateurError(
                f"the plan has schema {schema}, this version reads 2 and {SCHEMA}",
                remedy="use the version that wrote it",
            )
        with explained("the plan is damaged", remedy="write it again with Plan.to_json"):
            return cls(
                groups=tuple(
                    PlannedGroup(g["name"], int(g["size"]), _integers(g["kept"]), _floats(g["scales"]))
                    for g in data["groups"]
                ),
                kept={slot: _integers(indices) for slot, indices in _by_slot(data["axes"])},
                consumes=_slots(data["consumes" if schema == SCHEMA else "reads"]),
                selects=_slots(data.get("selects", ())),
                scales={slot: _floats(factors) for slot, factors in _by_slot(data["scales"])},
                shapes={name: _integers(shape) for name, shape in data["shapes"].items()},
                example=data["example"],
                output=data["output"],
                free_outputs=_texts(data.get("free_outputs", [])),
                scope=_texts(data.get("scope", [])),
            )

    def _repr_html_(self) -> str:
        return html(self._rows(), formats={"part": percent})

    def to_frame(self) -> Any:
        """Return every group that shrinks as a row of a pandas DataFrame."""
        return frame(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        sizes = [(group.name, group.size, len(group.kept)) for group in self.groups]
        return [{"group": name, "before": old, "after": new, "part": new / old} for name, old, new in sizes]

    def __str__(self) -> str:
        width = max([len(group.name) for group in self.groups], default=5)
        lines = [f"{'group':{width}}  {'before':>6}  {'after':>6}  {'kept':>5}"]
        for group in self.groups:
            share = 100 * len(group.kept) / group.size
            lines.append(f"{group.name:{width}}  {group.size:6}  {len(group.kept):6}  {share:4.0f}%")
        return "\n".join(lines)


@known_keywords
def random_plan(graph: ChannelGraph, kept: float = 0.5, seed: int = 0) -> Plan:
    """Return a plan that keeps the same fraction of every prunable group, at random: for tests and experiments.

    >>> plan = sc.random_plan(graph, kept=0.7)

    Args:
        graph: the channel groups of the network, from `trace`.
        kept: the fraction of units to keep, above 0 and at most 1; every group keeps at least one.
        seed: seed of the random numbers.
    """
    if not 0 < kept <= 1:
        raise SecateurError(f"kept is {kept}", remedy="pass the fraction of channels to keep, above 0 and at most 1")
    graph.check_prunable()
    generator = torch.Generator().manual_seed(seed)
    chosen = {}
    for group in graph.prunable:
        count = max(1, round(group.size * kept))
        chosen[group.name] = sorted(torch.randperm(group.size, generator=generator)[:count].tolist())
    return Plan.keeping(graph, chosen)


def _check_units(group: Group, units: Sequence[int]) -> None:
    outside = [unit for unit in units if not 0 <= unit < group.size]
    if not group.prunable:
        cause, remedy = f"the group is kept: {group.reasons[0]}", "leave it out of the plan"
    elif outside:
        cause, remedy = f"unit {outside[0]} is out of range", f"the group has units 0 to {group.size - 1}"
    elif not units:
        cause, remedy = "the plan keeps no channel: the layer would be empty", "keep at least one unit"
    else:
        return
    raise SecateurError(cause, layer=group.name, remedy=remedy)


def _scale_by_unit(group: Group, units: Sequence[int], scales: Sequence[float] | None) -> dict[int, float]:
    """Return the factor of each unit; empty if all are 1."""
    if scales is None or all(scale == 1 for scale in scales):
        return {}
    if len(scales) != len(units) or not all(math.isfinite(scale) for scale in scales):
        raise SecateurError(
            f"expected finite scales for {len(units)} kept units, got {list(scales)}"[:200],
            layer=group.name,
            remedy="pass one finite factor for each kept unit",
        )
    return dict(zip(units, map(float, scales), strict=True))


def _product(first: tuple[float, ...], second: tuple[float, ...], chosen: Sequence[int]) -> tuple[float, ...]:
    """Return the chosen factors of the first times the second; an empty tuple means factors of 1."""
    if not first and not second:
        return ()
    factors = second or (1.0,) * len(chosen)
    return tuple((first[i] if first else 1.0) * factor for i, factor in zip(chosen, factors, strict=True))


def _by_parameter(slots: Mapping[Slot, Sequence[Any]]) -> dict[str, dict[str, Any]]:
    axes: dict[str, dict[str, Any]] = {}
    for slot, values in slots.items():
        axes.setdefault(slot.parameter, {})[str(slot.axis)] = values
    return axes


def _by_slot(axes: Mapping[str, Mapping[str, Any]]) -> list[tuple[Slot, Any]]:
    return [(Slot(name, int(axis)), values) for name, by in axes.items() for axis, values in by.items()]


def _slots(pairs: Any) -> tuple[Slot, ...]:
    return tuple(Slot(name, int(axis)) for name, axis in pairs)


def _floats(numbers: Any) -> tuple[float, ...]:
    if not all(isinstance(n, int | float) and not isinstance(n, bool) and math.isfinite(n) for n in numbers):
        raise ValueError(f"expected finite numbers, found {numbers!r}"[:200])
    return tuple(float(n) for n in numbers)


def _texts(texts: Any) -> tuple[str, ...]:
    if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
        raise ValueError(f"expected texts, found {texts!r}"[:200])
    return tuple(texts)


def _integers(numbers: Any) -> tuple[int, ...]:
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers):
        raise ValueError(f"expected integers from 0, found {numbers!r}"[:200])
    return tuple(numbers)
