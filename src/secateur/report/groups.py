"""The channel graph as a table that fits 80 columns, and as JSON."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group as Stack
from rich.table import Table
from rich.text import Text

from secateur.cost import Cost, Share, shares
from secateur.graph import ChannelGraph, Group

ROWS = 40  # what a person still reads; the rest is a number and an option


def as_table(graph: ChannelGraph, cost: Cost, *, rows: int | None = ROWS) -> Stack:
    """Lay out the groups with their shares, the reasons of the kept ones below, then the totals.

    >>> rich.print(as_table(trace(model, example), cost(model, example)))

    Of more groups than `rows`, those with the largest shares are shown, in the order of the network.
    """
    part = shares(graph, cost)
    shown = _largest(graph, part, rows)
    numbers = {text: number for number, text in enumerate(_places(shown), 1)}

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("group", overflow="fold")
    for heading in ("channels", "params", "MACs"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    for group in shown:
        share = part[group.name]
        notes = ",".join(str(number) for number in sorted({numbers[reason.text] for reason in group.reasons}))
        status = Text("prunable", "green") if group.prunable else Text(f"kept ({notes})", "yellow")
        table.add_row(Text(group.name), f"{group.size:,}", _percent(share.params), _percent(share.macs), status)

    parts: list[Any] = [table]
    if hidden := len(graph.groups) - len(shown):
        parts += ["", Text(f"{hidden} smaller groups are not shown; --all lists them.", "dim")]
    if numbers:
        parts += ["", Text("Kept, because", "bold"), _footnotes(_places(shown), 1 if rows else None)]
    for note in graph.notes:
        parts += ["", Text(f"Note: {note}")]
    if graph.unused:
        parts += ["", Text(f"Never used in the forward pass: {', '.join(graph.unused)}")]
    return Stack(*parts, "", Text(_totals(graph, cost)))


def as_dict(graph: ChannelGraph, cost: Cost, *, indices: bool = False) -> dict[str, Any]:
    """Give the same and more as plain data; `indices` adds where each unit sits along each slot.

    >>> json.dumps(as_dict(trace(model, example), cost(model, example)))
    """
    part = shares(graph, cost)
    return {
        "params": cost.params,
        "macs": cost.macs,
        "output": graph.output,
        "groups": [_group(group, part[group.name], indices) for group in graph.groups],
        "notes": list(graph.notes),
        "unused": list(graph.unused),
    }


def _group(group: Group, share: Share, indices: bool) -> dict[str, Any]:
    return {
        "name": group.name,
        "channels": group.size,
        "prunable": group.prunable,
        "params_share": share.params,
        "macs_share": share.macs,
        "producers": list(group.producers),
        "consumers": list(group.consumers),
        "reasons": [
            {"text": reason.text, "op": reason.op, "module": reason.module, "source": reason.source}
            for reason in group.reasons
        ],
        "slots": [
            {"parameter": slot.parameter, "axis": slot.axis} | ({"indices": units} if indices else {})
            for slot, units in zip(group.slots, group.indices, strict=True)
        ],
    }


def _largest(graph: ChannelGraph, part: dict[str, Share], rows: int | None) -> list[Group]:
    if rows is None or len(graph.groups) <= rows:
        return list(graph.groups)
    weight = {name: max(share.params, share.macs) for name, share in part.items()}
    chosen = set(sorted(weight, key=lambda name: -weight[name])[:rows])
    return [group for group in graph.groups if group.name in chosen]


def _places(groups: list[Group]) -> dict[str, list[str]]:
    """The different reasons in the order of the network, and where each applies."""
    places: dict[str, dict[str, None]] = {}
    for group in groups:
        for reason in group.reasons:
            place = ", ".join(part for part in (reason.op, reason.module, reason.source) if part)
            places.setdefault(reason.text, {})[place] = None
    return {text: list(filter(None, found)) for text, found in places.items()}


def _footnotes(places: dict[str, list[str]], limit: int | None) -> Table:
    notes = Table.grid(padding=(0, 1))
    notes.add_column(justify="right", no_wrap=True)
    notes.add_column(overflow="fold")
    for number, (text, found) in enumerate(places.items(), 1):
        notes.add_row(f"({number})", Text(text))
        for place in found[:limit]:
            notes.add_row("", Text(f"at {place}", "dim"))
        if hidden := len(found[limit:]) if limit else 0:
            notes.add_row("", Text(f"and at {hidden} more {'place' if hidden == 1 else 'places'}", "dim"))
    return notes


def _totals(graph: ChannelGraph, cost: Cost) -> str:
    channels = sum(group.size for group in graph.prunable)
    every = sum(group.size for group in graph.groups)
    return (
        f"{len(graph.prunable)} of {len(graph.groups)} groups can be cut: {channels:,} of {every:,} channels.\n"
        f"The network has {cost}.\n"
        "A weight between two groups counts in both."
    )


def _percent(share: float) -> str:
    return "<0.1 %" if 0 < share < 0.0005 else f"{share:.1%}".replace("%", " %")
