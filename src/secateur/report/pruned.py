"""What became of a network, as a report that fits 80 columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group as Stack
from rich.table import Table
from rich.text import Text

from secateur.cost import Latency, magnitude
from secateur.methods.base import GroupRow
from secateur.prune import FIGURES, Pruned, repaired
from secateur.report.groups import ROWS

LEGEND = {
    "mass": "sum of the sensitivities.",
    "eps": "the relative error in each layer that drawing so many promises.",
    "dropped": "sum of the sensitivities that went, which bounds the error of derand. From 1 on it promises nothing.",
    "harm": "how far the output moves when this group alone is cut so and its readers are fitted anew, as estimated.",
}


def as_table(res: Pruned, *, rows: int | None = ROWS, times: tuple[Latency, Latency] | None = None) -> Stack:
    """Lay out the groups, the cost before and after, the proof and the notes.

    >>> rich.print(as_table(sc.prune(model, images, budget={"params": "40%"})))

    Of more groups than `rows`, those that lost most channels are shown, in the order of the network.
    times: of the original and of the cut network.
    """
    parts: list[Any] = [groups(res, rows=rows), "", costs(res, times=times), "", Text(proof(res))]
    if res.repair is not None:
        told = repaired(res.repair)
        parts += ["", Text(f"{told[0].upper()}{told[1:]}.")]
    for note in res.notes:
        parts += ["", Text(f"Note: {note}")]
    return Stack(*parts)


def groups(res: Pruned, *, rows: int | None = ROWS) -> Stack:
    """Lay out what happened to each group.

    >>> rich.print(groups(res))
    """
    shown = _most_cut(res.rows, rows)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("group", overflow="fold")
    told = [key for key in FIGURES if any(not math.isnan(getattr(row, key)) for row in res.rows)]
    for heading in ("before", "after", *told):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in shown:
        cells = [_figure(key, getattr(row, key), row.after < row.before) for key in told]
        table.add_row(Text(row.name), f"{row.before:,}", f"{row.after:,}", *cells)
    parts: list[Any] = [table]
    if hidden := len(res.rows) - len(shown):
        parts += ["", Text(f"{hidden} groups that lost less are not shown; --all lists them.", "dim")]
    legend = " ".join(f"{key}: {LEGEND[key]}" for key in told)
    if legend:
        parts += ["", Text(legend, "dim")]
    return Stack(*parts)


def costs(res: Pruned, *, times: tuple[Latency, Latency] | None = None) -> Table:
    """Lay out the cost before and after, with what was removed: PR of the parameters, FR of the MACs.

    >>> rich.print(costs(res, times=(sc.latency(model, example), sc.latency(res.model, example))))
    """
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("")
    for heading in ("before", "after", "removed"):
        table.add_column(heading, justify="right", no_wrap=True)
    before, after = res.before, res.after
    for name, short, old, new in (
        ("parameters", "PR", before.params, after.params),
        ("MACs", "FR", before.macs, after.macs),
    ):
        table.add_row(name, magnitude(old), magnitude(new), f"{short} {_removed(old, new)}")
    if times:
        slow, fast = (one.median_ms for one in times)
        table.add_row("latency, median", f"{slow:.3g} ms", f"{fast:.3g} ms", _removed(slow, fast))
    return table


def proof(res: Pruned) -> str:
    """Say in a sentence what was verified.

    >>> proof(res)
    'Verified: the cut network equals the original with those channels silenced, to 2e-07 (relative).'
    """
    if not res.plan.kept:
        return "Nothing had to go: the network is as it was."
    silenced = "silenced and the others reweighed" if any(res.plan.scales) else "silenced"
    before = "" if res.repair is None else ", before the repair,"
    return (
        f"Verified: the cut network{before} equals the original with those channels {silenced}, "
        f"to {res.verification:.0e} (relative)."
    )


def _most_cut(rows: Sequence[GroupRow], limit: int | None) -> list[GroupRow]:
    if limit is None or len(rows) <= limit:
        return list(rows)
    chosen = {row.name for row in sorted(rows, key=lambda row: row.after - row.before)[:limit]}
    return [row for row in rows if row.name in chosen]


def _figure(key: str, value: float, cut: bool) -> Text:
    if key == "mass":
        return Text(_number(value))
    vacuous = key in ("eps", "dropped") and value >= 1
    return Text(_number(value) if cut else "-", "yellow" if cut and vacuous else "")


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    return "inf" if math.isinf(value) else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _removed(old: float, new: float) -> str:
    return f"{1 - new / old if old else 0:.1%}".replace("%", " %")
