"""`secateur figure`: a chart for a paper, as PDF, SVG or PNG; or a table as Markdown, CSV or LaTeX."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from secateur.cli import options
from secateur.cli.inputs import check_out
from secateur.cli.options import OUTPUT, argument, option
from secateur.cli.screen import Screen, unwrapped
from secateur.errors import UsageError, explained
from secateur.report import figures
from secateur.report.blocks import Table
from secateur.report.sources import read_source
from secateur.storage.files import write_atomic

FORMATS = (".pdf", ".svg", ".png")


def figure(
    *,
    source: Annotated[Path, argument("SOURCE", "What secateur report shows: a sweep's folder, a network, a .json.")],
    chart: Annotated[str | None, option(OUTPUT, "NAME", "Which chart; without it, they are listed.")] = None,
    out: Annotated[Path | None, option(OUTPUT, "FILE", "A .pdf, .svg or .png file.")] = None,
    force: options.Force = False,
    width: Annotated[str, option(OUTPUT, "SIZE", "column, full, or inches.")] = "column",
    table: Annotated[
        Literal["markdown", "csv", "latex"] | None, option(OUTPUT, "FORM", "Print the table: markdown, csv or latex.")
    ] = None,
    screen: Screen,
) -> None:
    """Draw a chart of SOURCE for a paper, or print its table."""
    if table is not None and screen.as_json:
        raise UsageError("--json and --table are two forms of one result", remedy="choose one of them")
    if out is not None:
        check_out(out, force)
        if out.suffix not in FORMATS:
            raise UsageError(f"{out} has no format of a figure", remedy=f"name a file with {', '.join(FORMATS)}")
    result = read_source(source)
    if table is not None:
        found = [one for part in result.sections for one in part.blocks if isinstance(one, Table)]
        if not found:
            raise UsageError(f"{source} has no table", remedy="name a result that has rows")
        typer.echo(found[0].text(table), nl=False)
        return
    charts = [*result.charts, *(["network"] if figures.has_network(result) else [])]
    if chart is None and out is None:
        page = "\n".join(["Charts; draw one with --chart NAME --out FILE:", *(f"  {name}" for name in charts)])
        screen.show({"source": str(source), "charts": charts}, unwrapped(page))
        return
    if out is None:
        raise UsageError("there is no file for the figure", remedy="name one: --out figure.pdf")
    size = width if width in figures.WIDTHS else _inches(width)
    made = figures.network(result, width=size) if chart == "network" else figures.figure(result, chart, width=size)
    write_atomic(out, figures.as_bytes(made, out.suffix[1:]))
    name = chart or charts[0]
    screen.show({"source": str(source), "chart": name, "out": str(out)}, unwrapped(f"Saved: {out} ({name})"))


def _inches(text: str) -> float:
    with explained(f"the width is {text!r}", remedy="use column, full, or a number of inches"):
        return float(text)
