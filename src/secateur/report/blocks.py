"""The parts of a report page: sections of charts, tables, texts and networks, as plain data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from secateur import rows
from secateur.report.charts import Chart, plotly
from secateur.tables import percent

WRITTEN: dict[str, Callable[[Any], str]] = {
    "count": lambda value: f"{value:,.0f}",
    "percent": percent,
    "points": lambda value: f"{value:.2f}",
    "ms": lambda value: f"{value:.3g} ms",
}
Format = Literal["text", "code", "count", "number", "percent", "points", "ms"]


@dataclass(frozen=True)
class Column:
    """One column of a table: the key of its values, its heading, and how the page shows them."""

    key: str
    title: str
    format: Format = "number"
    about: str = ""


@dataclass(frozen=True)
class Table:
    """Rows that readers sort, filter and download."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Any], ...]
    caption: str = ""

    def data(self) -> dict[str, Any]:
        """Return the table as JSON can hold it; columns without any value are left out."""
        used = [one for one in self.columns if any(_plain(row.get(one.key)) is not None for row in self.rows)]
        return {
            "kind": "table",
            "columns": [vars(one) for one in used],
            "rows": [[_plain(row.get(one.key)) for one in used] for row in self.rows],
        }

    def text(self, form: Literal["markdown", "csv", "latex"]) -> str:
        """Return the table for a paper or another program; CSV has the keys as headings and all digits."""
        used = [one for one in self.columns if any(_plain(row.get(one.key)) is not None for row in self.rows)]
        if form == "csv":
            return rows.csv_text({one.key: _plain(row.get(one.key)) for one in used} for row in self.rows)
        plain = [{one.title: _plain(row.get(one.key)) for one in used} for row in self.rows]
        formats = {one.title: WRITTEN[one.format] for one in used if one.format in WRITTEN}
        write = rows.markdown if form == "markdown" else rows.latex
        return write(plain, formats=formats) + "\n"


@dataclass(frozen=True)
class Plot:
    """A chart, or several of which a reader chooses one."""

    name: str
    title: str
    charts: tuple[Chart, ...]
    caption: str = ""
    label: str = "Show"

    @classmethod
    def of(cls, chart: Chart) -> Plot:
        """Return the block of a single chart."""
        return cls(chart.name, chart.title, (chart,), chart.caption)

    def data(self) -> dict[str, Any]:
        """Return the charts as JSON can hold them."""
        return {"kind": "plot", "charts": [plotly(chart) for chart in self.charts]}


@dataclass(frozen=True)
class Network:
    """The layers of a network with their widths before and after, and where each is drawn."""

    name: str
    title: str
    layers: tuple[Mapping[str, Any], ...]
    caption: str = ""

    def data(self) -> dict[str, Any]:
        """Return the layers with their places as JSON can hold them."""
        return {"kind": "network", "layers": list(self.layers)}


@dataclass(frozen=True)
class Facts:
    """Names and values, one below the other; a value with several lines is shown as code."""

    name: str
    title: str
    facts: tuple[tuple[str, str], ...]
    caption: str = ""

    def data(self) -> None:
        """Return nothing: the page has the text itself."""


@dataclass(frozen=True)
class Words:
    """Paragraphs, or the entries of a list; warnings stand out."""

    name: str
    title: str
    texts: tuple[str, ...]
    listed: bool = False
    warning: bool = False
    caption: str = ""

    def data(self) -> None:
        """Return nothing: the page has the text itself."""


Block = Table | Plot | Network | Facts | Words


@dataclass(frozen=True)
class Section:
    """A part of the page that a link can point to."""

    name: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Result:
    """Everything that the page shows of one source.

    Attributes:
        kind: what the source is, in words: `sweep`, `pruned network`, `comparison`, `certificate`, `timing`, ...
        name: of the source, for headings.
        key: the figures for the overview of several results, by heading.
        sections: in the order of the page.
        shared: charts that several results of one kind draw together, see `page.together`.
    """

    kind: str
    name: str
    key: Mapping[str, Any]
    sections: tuple[Section, ...]
    shared: tuple[Chart, ...] = ()

    @property
    def charts(self) -> dict[str, Chart]:
        """All charts by name, those of a choice as `NAME:CHOICE`."""
        found: dict[str, Chart] = {}
        for section in self.sections:
            for block in section.blocks:
                for chart in block.charts if isinstance(block, Plot) else ():
                    found[f"{block.name}:{chart.choice}" if chart.choice else block.name] = chart
        return found


def sections(*parts: tuple[str, str, Sequence[Block | None]]) -> tuple[Section, ...]:
    """Return the sections that have at least one block, from their names, titles and blocks."""
    made = [(name, title, tuple(block for block in blocks if block is not None)) for name, title, blocks in parts]
    return tuple(Section(name, title, blocks) for name, title, blocks in made if blocks)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
