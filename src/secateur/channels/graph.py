"""The channel graph: groups of channels that can be cut, those that are kept, and the reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.console import Group as Stack
from rich.table import Table
from rich.text import Text

from secateur import tables
from secateur.channels.ties import Reason
from secateur.channels.topology import Layer
from secateur.deprecation import warn_deprecated
from secateur.errors import SecateurError
from secateur.network.modules import Slot, owner
from secateur.rows import frame, html
from secateur.tables import ROWS, percent

Output = Literal["module", "graph"]


@dataclass(frozen=True)
class Share:
    """The fraction of a network's parameters and MACs that lies in the channels of one group, from 0 to 1."""

    params: float
    macs: float


@dataclass(frozen=True)
class Group:
    """Channels that lie on the same parameter axes, divided into units: a unit is removed as a whole.

    Attributes:
        name: the first layer that produces the channels; a second group of that layer is `conv1#2`, the channels that
            come from outside the network are `conv1:input`.
        slots: the parameter axes, beginning with the one that produces the channels.
        indices: `indices[s][u]` are the indices of unit `u` along slot `s`.
        reasons: why the group is kept; empty if it can be cut.
        produces: the slots that are the output axis of a layer.
        consumes: the slots that are the input axis of a layer, where zeros mask a unit.
        from_input: whether the channels are inputs of the network that may be cut (`prune_inputs`): the layer that
            consumes them then selects those that are kept.
    """

    name: str
    slots: tuple[Slot, ...]
    indices: tuple[tuple[tuple[int, ...], ...], ...]
    reasons: tuple[Reason, ...] = ()
    produces: tuple[Slot, ...] = ()
    consumes: tuple[Slot, ...] = ()
    from_input: bool = False

    @property
    def size(self) -> int:
        """The number of units."""
        return len(self.indices[0])

    @property
    def prunable(self) -> bool:
        """Whether units of the group can be removed."""
        return not self.reasons

    @property
    def producers(self) -> tuple[str, ...]:
        """The layers that produce the channels."""
        return _owners(self.produces)

    @property
    def consumers(self) -> tuple[str, ...]:
        """The layers that consume the channels."""
        return _owners(self.consumes)

    @property
    def makes(self) -> tuple[bool, ...]:
        """Deprecated: use `produces`."""
        warn_deprecated("Group.makes", "Group.produces, the slots themselves")
        return tuple(slot in self.produces for slot in self.slots)

    @property
    def reads(self) -> tuple[bool, ...]:
        """Deprecated: use `consumes`."""
        warn_deprecated("Group.reads", "Group.consumes, the slots themselves")
        return tuple(slot in self.consumes for slot in self.slots)

    def as_dict(self, share: Share, indices: bool = False) -> dict[str, Any]:
        """Return the group as plain data; `indices` adds the indices of each unit along each slot."""
        return {
            "name": self.name,
            "channels": self.size,
            "prunable": self.prunable,
            "params_share": share.params,
            "macs_share": share.macs,
            "producers": list(self.producers),
            "consumers": list(self.consumers),
            "reasons": [asdict(reason) for reason in self.reasons],
            "slots": [
                {"parameter": slot.parameter, "axis": slot.axis} | ({"indices": units} if indices else {})
                for slot, units in zip(self.slots, self.indices, strict=True)
            ],
        }


@dataclass(frozen=True)
class ChannelGraph:
    """All channel groups of a network, prunable or kept with the reasons; `print(graph)` shows them as a table.

    >>> graph = sc.trace(model, torch.zeros(1, 3, 224, 224))
    >>> graph["conv1"].size
    64

    Attributes:
        groups: the groups in the order of the network.
        shapes: the shape of every parameter and buffer.
        example: shapes and types of the inputs that the network was traced with, as plain data.
        output: what a cut returns: `"module"` or `"graph"`.
        notes: remarks, such as a mode that could not be traced.
        unused: parameters and buffers that the forward pass never uses.
        scope: the submodules that the graph is of; empty if it is of the whole model.
        free_outputs: the outputs that need not keep their channels, as given.
        layers: the layers and how they are connected, for pictures.
    """

    groups: tuple[Group, ...]
    shapes: dict[str, tuple[int, ...]]
    example: Any
    output: Output = "module"
    notes: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    layers: tuple[Layer, ...] = ()
    free_outputs: tuple[str, ...] = ()
    scope: tuple[str, ...] = ()

    @property
    def prunable(self) -> tuple[Group, ...]:
        """The groups that can be cut."""
        return tuple(group for group in self.groups if group.prunable)

    @property
    def unused_layers(self) -> tuple[str, ...]:
        """The layers that never run: no parameter of theirs is used."""
        used = {owner(name) for name in self.shapes if name not in self.unused}
        return tuple(dict.fromkeys(name for name in map(owner, self.unused) if name not in used))

    @property
    def remarks(self) -> tuple[str, ...]:
        """The notes, and one on layers that never run."""
        layers = self.unused_layers
        if not layers:
            return self.notes
        named = ", ".join(layers[:5]) + (f" and {len(layers) - 5} more" if len(layers) > 5 else "")
        runs = "layer never runs and stays as it is" if len(layers) == 1 else "layers never run and stay as they are"
        return (*self.notes, f"{len(layers)} {runs}: {named}")

    def check_prunable(self) -> None:
        """Raise an error if no group of the network can be cut."""
        if not self.prunable:
            reasons = {str(reason) for group in self.groups for reason in group.reasons}
            raise SecateurError(
                "no group of this network can be cut: " + "; ".join(sorted(reasons)[:5]),
                remedy=_remedy(reasons),
            )

    def __getitem__(self, name: str) -> Group:
        for group in self.groups:
            if group.name == name:
                return group
        raise SecateurError(
            f"there is no group {name!r}", remedy=f"use one of {', '.join(g.name for g in self.groups)}"
        )

    def __str__(self) -> str:
        return tables.plain(self.table(rows=None))

    def _repr_html_(self) -> str:
        return html(self._rows(), caption=self._totals(False, None))

    def to_frame(self) -> Any:
        """Return every group as a row of a pandas DataFrame."""
        return frame(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                "group": group.name,
                "channels": group.size,
                "prunable": group.prunable,
                "producers": ", ".join(group.producers),
                "consumers": ", ".join(group.consumers),
                "reasons": "; ".join(map(str, group.reasons)),
            }
            for group in self.groups
        ]

    def table(
        self, shares: Mapping[str, Share] | None = None, *, total: object = None, rows: int | None = ROWS
    ) -> Stack:
        """Return the groups as a table for a rich terminal: sizes, status, and below it the reasons of kept groups.

        >>> rich.print(graph.table(shares(graph, cost), total=cost))

        Args:
            shares: the shares of each group in parameters and MACs, from `secateur.costs.cost.shares`.
            total: the cost of the network, for the last line.
            rows: maximum number of rows; of more groups only the largest are shown. None shows all.
        """
        shown = self._largest(shares, rows)
        locations = _locations(shown)
        numbers = {text: number for number, text in enumerate(locations, 1)}
        made = tables.table("group", "channels", *(("params", "MACs") if shares else ()), last=["status"])
        for group in shown:
            notes = ",".join(str(number) for number in sorted({numbers[reason.text] for reason in group.reasons}))
            status = Text("prunable", "green") if group.prunable else Text(f"kept ({notes})", "yellow")
            parts = [percent(part) for part in (shares[group.name].params, shares[group.name].macs)] if shares else []
            made.add_row(Text(group.name), f"{group.size:,}", *parts, status)
        page: list[Any] = [made]
        if hidden := len(self.groups) - len(shown):
            page += ["", Text(f"{hidden} smaller groups are not shown; --all lists them.", "dim")]
        if locations:
            page += ["", Text("Kept because", "bold"), _footnotes(locations, 1 if rows else None)]
        page += tables.paragraphs("Note: ", self.remarks)
        return Stack(*page, "", Text(self._totals(shares is not None, total)))

    def as_dict(self, shares: Mapping[str, Share], *, indices: bool = False) -> dict[str, Any]:
        """Return the graph as plain data; `indices` adds the indices of each unit along each slot."""
        return {
            "output": self.output,
            "groups": [group.as_dict(shares[group.name], indices) for group in self.groups],
            "notes": list(self.notes),
            "unused": list(self.unused),
            "unused_layers": list(self.unused_layers),
            "free_outputs": list(self.free_outputs),
            "scope": list(self.scope),
        }

    def _largest(self, shares: Mapping[str, Share] | None, rows: int | None) -> list[Group]:
        if rows is None or len(self.groups) <= rows:
            return list(self.groups)
        size = {g.name: max(shares[g.name].params, shares[g.name].macs) if shares else g.size for g in self.groups}
        chosen = set(sorted(size, key=lambda name: -size[name])[:rows])
        return [group for group in self.groups if group.name in chosen]

    def _totals(self, shared: bool, total: object) -> str:
        cut, every = (sum(group.size for group in groups) for groups in (self.prunable, self.groups))
        lines = [f"{len(self.prunable)} of {len(self.groups)} groups can be cut: {cut:,} of {every:,} channels."]
        lines += [] if total is None else [f"The network has {total}."]
        lines += ["A weight between two groups counts in both."] if shared else []
        return "\n".join(lines)


def last_unit(name: str) -> Reason:
    """Return the reason why a group with a single unit is kept."""
    return Reason(f"all channels of {name} are one unit: without it nothing would be left")


def _remedy(reasons: set[str]) -> str:
    """Return what could free a group that is kept for these reasons."""
    if any("output='graph'" in reason for reason in reasons):
        return "use output='graph', which can cut some of them"
    if any(reason.startswith("keep=") for reason in reasons):
        return "keep fewer layers; print(sc.trace(model, example)) shows why each group is kept"
    return "prune a network with hidden channels; print(sc.trace(model, example)) shows why each group is kept"


def _locations(groups: list[Group]) -> dict[str, list[str]]:
    """Return the different reasons in the order of the network, and where each of them arises."""
    found: dict[str, dict[str, None]] = {}
    for group in groups:
        for reason in group.reasons:
            found.setdefault(reason.text, {})[reason.location] = None
    return {text: list(filter(None, locations)) for text, locations in found.items()}


def _footnotes(reasons: dict[str, list[str]], limit: int | None) -> Table:
    notes = Table.grid(padding=(0, 1))
    notes.add_column(justify="right", no_wrap=True)
    notes.add_column(overflow="fold")
    for number, (text, locations) in enumerate(reasons.items(), 1):
        notes.add_row(f"({number})", Text(text))
        for location in locations[:limit]:
            notes.add_row("", Text(f"at {location}", "dim"))
        if hidden := len(locations[limit:]) if limit else 0:
            notes.add_row("", Text(f"and at {hidden} more {'location' if hidden == 1 else 'locations'}", "dim"))
    return notes


def _owners(slots: Iterable[Slot]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(owner(slot.parameter) for slot in slots))
