"""The report page: one HTML file with everything in it, which works offline and from disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from plotly.offline import get_plotlyjs

from secateur._version import __version__
from secateur.errors import UsageError
from secateur.report.blocks import Block, Column, Plot, Result, Section, Table
from secateur.report.charts import Chart, Series
from secateur.storage.files import writable_file, write_atomic

FORMATS = {"removed": "percent", "accuracy": "percent", "answer": "percent"}  # by the last word of a heading


@dataclass(frozen=True)
class Part:
    """A part of the page with its own heading."""

    id: str
    name: str
    kind: str
    sections: tuple[Section, ...]


def write_page(path: str | Path, results: Sequence[Result], *, title: str | None = None, force: bool = False) -> Path:
    """Write a page about one or several results, and return its file.

    Args:
        title: of the page; by default the names of the results.
        force: overwrite an existing file.
    """
    file = writable_file(path)
    if file.exists() and not force:
        raise UsageError(f"{path} exists", remedy="choose another name, or overwrite it with force (--force)")
    write_atomic(file, page(results, title=title))
    return file


def page(results: Sequence[Result], *, title: str | None = None, live: str | None = None) -> str:
    """Return the page as HTML.

    Args:
        results: what it shows, in this order; several have an overview above them.
        title: by default the names of the results.
        live: a stamp of the data; with it, the page asks its server for newer data.
    """
    if not results:
        raise UsageError("there is nothing to show", remedy="pass at least one result")
    parts = _parts(results)
    data = {"blocks": _blocks(parts)} | ({} if live is None else {"stamp": live})
    folder = _environment()
    source = folder.loader
    assert source is not None
    return (
        folder.get_template("page.html")
        .render(
            parts=parts,
            title=title or ", ".join(result.name for result in results),
            version=__version__,
            live=live is not None,
            css=source.get_source(folder, "page.css")[0],
            js=source.get_source(folder, "page.js")[0],
            plotly=get_plotlyjs(),
            data=_json(data),
        )
        .lstrip()
    )


def update(results: Sequence[Result]) -> dict[str, Any]:
    """Return what a live page needs to show these results: its content as HTML, and the data of its blocks."""
    parts = _parts(results)
    return {
        "html": _environment().get_template("page.html").render(parts=parts, fragment=True),
        "blocks": _blocks(parts),
    }


@cache
def _environment() -> Environment:
    return Environment(loader=PackageLoader("secateur.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True)


def _parts(results: Sequence[Result]) -> tuple[Part, ...]:
    made = [Part(f"r{place}", one.name, one.kind, one.sections) for place, one in enumerate(results, 1)]
    if len(results) > 1:
        made.insert(0, Part("overview", "Overview", "", _overview(results)))
    return tuple(made)


def _blocks(parts: Sequence[Part]) -> dict[str, Any]:
    """Return the data of all blocks by the id that they have in the page."""
    found = {}
    for part in parts:
        for section in part.sections:
            for place, block in enumerate(section.blocks, 1):
                if (data := block.data()) is not None:
                    found[f"{part.id}-{section.name}-{block.name}-{place}"] = data
    return found


def _overview(results: Sequence[Result]) -> tuple[Section, ...]:
    """Return the results side by side: a table for each kind, and the charts that they share."""
    made = []
    for kind in dict.fromkeys(result.kind for result in results):
        own = [result for result in results if result.kind == kind]
        rows = tuple({"result": result.name, **result.key} for result in own)
        keys = list(dict.fromkeys(key for row in rows for key in row))
        columns = tuple(Column(key, key.replace("_", " "), _format(key, rows)) for key in keys)  # type: ignore[arg-type]
        title = f"{len(own)} {kind}s side by side" if len(own) > 1 else f"1 {kind}"
        blocks: list[Block] = [*map(Plot.of, together(own)), Table("results", title, columns, rows)]
        made.append(Section(kind.replace(" ", "-"), f"{kind[0].upper()}{kind[1:]}s", tuple(blocks)))
    return tuple(made)


def _format(key: str, rows: Sequence[Mapping[str, Any]]) -> str:
    values = [row.get(key) for row in rows]
    if all(isinstance(value, str | None) for value in values):
        return "text"
    if all(isinstance(value, int | None) for value in values):
        return "count"
    return FORMATS.get(key.rpartition("_")[2], "number")


def together(results: Sequence[Result]) -> list[Chart]:
    """Return the charts that several results share, with the series of all of them."""
    if len(results) < 2:
        return []
    by_name: dict[str, list[tuple[Result, Chart]]] = {}
    for result in results:
        for chart in result.shared:
            by_name.setdefault(chart.name, []).append((result, chart))
    made = []
    for pairs in by_name.values():
        series: list[Series] = []
        style = 0
        for result, chart in pairs:
            own = {
                one.name: f"{result.name}: {one.name}" if one.name != result.name else one.name for one in chart.series
            }
            for one in chart.series:
                style += not one.of
                series.append(replace(one, name=own[one.name], of=own.get(one.of, one.of), style=style - 1))
        made.append(replace(pairs[0][1], series=tuple(series)))
    return made


def _json(data: Any) -> str:
    """Return JSON that can stand inside a script element: it holds no `<`."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
