"""Tables and figures as people read them, the same in a terminal and as plain text."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

ROWS = 40  # rows of a long table that are shown unless all are asked for
WIDTH = 100  # columns of plain text


def table(first: str, *numbers: str, last: Sequence[str] = ()) -> Table:
    """Return an empty table: one column of names, then right-aligned figures, then short texts."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    made.add_column(first, overflow="fold")
    for heading in numbers:
        made.add_column(heading, justify="right", no_wrap=True)
    for heading in last:
        made.add_column(heading, no_wrap=True)
    return made


def wrapped(first: str, *texts: str) -> Table:
    """Return an empty table of texts, whose cells are wrapped where there is no room, but not those of the first."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    made.add_column(first, no_wrap=True)
    for heading in texts:
        made.add_column(heading, overflow="fold")
    return made


def plain(content: RenderableType, width: int = WIDTH) -> str:
    """Return what a terminal would show, without colours and trailing spaces."""
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None, force_terminal=False).print(content)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def paragraphs(prefix: str, texts: Iterable[str]) -> list[Any]:
    """Return each text as a paragraph of its own, with an empty line before it."""
    return [part for text in texts for part in ("", Text(f"{prefix}{text}"))]


def percent(share: float | None, digits: int = 1) -> str:
    """Return `12.3%`; `-` for no value, `<0.1%` for one that would round to nothing."""
    if share is None or math.isnan(share):
        return "-"
    least = 10.0**-digits
    return f"<{least:g}%" if 0 < 100 * share < least / 2 else f"{share:.{digits}%}"


def number(value: float | None) -> str:
    """Return three digits of a value: `0.123`, `1,230`, `inf`; `-` for no value."""
    if value is None or math.isnan(value):
        return "-"
    return "inf" if math.isinf(value) else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def magnitude(value: float) -> str:
    """Return a count as four digits and a unit.

    >>> magnitude(11_689_512)
    '11.69 M'
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value:.0f}"
