"""A comparison of methods, as a report that fits 80 columns."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group as Stack
from rich.table import Table
from rich.text import Text

from secateur.compare import Comparison, Row
from secateur.cost import magnitude

LEGEND = {
    "accuracy": "accuracy: share of {judged:,} points whose class has the highest score.",
    "movement": "movement: how far the output is from the original's on {judged:,} points that no method saw; the less "
    "the better. For scores of classes it is the divergence of the probabilities, else the relative square.",
}


def as_table(found: Comparison) -> Stack:
    """Lay out the methods under each budget, the best first, then what could not be done and the notes.

    >>> rich.print(as_table(sc.compare(model, images, {"params": ["50%", "30%"]}, ["pfp", "ft"], on=(x, y))))
    """
    parts: list[Any] = [Text(original(found)), "", _rows(found), "", Text(_legend(found), "dim")]
    missing = [row for row in found.rows if row.why is not None]
    if missing:
        parts += ["", Text("Not done", "bold")]
        parts += [Text(f"{row.method} at {row.budget}{_part_of(found, row)}: {row.why}") for row in missing]
    if not found.finished:
        parts += ["", Text(f"Unfinished: {len(found.cells)} of {_wanted(found)} networks were judged.", "yellow")]
    for note in found.notes:
        parts += ["", Text(f"Note: {note}")]
    return Stack(*parts)


def original(found: Comparison) -> str:
    """Say in a sentence what the network was before.

    >>> original(found)
    'The original has 431.1 k parameters and 2.293 M MACs; accuracy 99.05 %.'
    """
    size = f"{magnitude(found.before.params)} parameters and {magnitude(found.before.macs)} MACs"
    accuracy = "" if found.original is None else f"; accuracy {_percent(found.original, 2)}"
    return f"The original has {size}{accuracy}."


def _rows(found: Comparison) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    table.add_column("budget", justify="right", no_wrap=True)
    table.add_column("method", overflow="fold")
    several = found.draws > 1
    for heading in ("params", "MACs", found.measure, *(["low to high"] if several else []), "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for budget in found.budgets:
        for place, row in enumerate(found.best_first(budget)):
            spread = [_spread(found, row)] if several else []
            table.add_row(
                Text("" if place else budget),
                Text(row.method),
                _kept(row.params, found.before.params),
                _kept(row.macs, found.before.macs),
                _figure(found, row.figure),
                *spread,
                "-" if row.seconds is None else f"{row.seconds:.2g}" if row.seconds < 10 else f"{row.seconds:,.0f}",
            )
        if budget != found.budgets[-1]:
            table.add_section()
    return table


def _legend(found: Comparison) -> str:
    spread = f" Means over {found.draws} draws of points; the lowest and the highest." if found.draws > 1 else ""
    remains = {"params": "parameters", "macs": "MACs"}[found.resource]
    return (
        f"budget: {remains} that may remain. {LEGEND[found.measure].format(judged=found.judged)}{spread} "
        f"params, MACs: what is left of them. seconds: to measure on {found.points:,} points, choose, cut, verify and "
        "repair, without tracing."
    )


def _part_of(found: Comparison, row: Row) -> str:
    return f" (in {found.draws - row.draws} of {found.draws} draws)" if row.draws else ""


def _wanted(found: Comparison) -> int:
    return found.draws * len(found.methods) * len(found.budgets)


def _kept(value: float | None, whole: float) -> str:
    return "-" if value is None else _percent(value / whole if whole else 0.0, 1)


def _figure(found: Comparison, value: float | None) -> str:
    if value is None:
        return "-"
    return _percent(value, 2) if found.measure == "accuracy" else f"{value:.3g}"


def _spread(found: Comparison, row: Row) -> str:
    return f"{_figure(found, row.low).removesuffix(' %')} to {_figure(found, row.high)}" if row.draws else "-"


def _percent(share: float, digits: int) -> str:
    return f"{share:.{digits}%}".replace("%", " %")
