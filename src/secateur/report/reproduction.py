"""What the page shows of a reproduction of the paper: the rows of a table or figure, ours beside the published ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from secateur.report.blocks import Block, Column, Plot, Result, Table, Words, sections
from secateur.report.charts import Axis, Chart, Series, finite
from secateur.rows import headings, is_numeric

STAGES = ("before retraining", "after retraining")


def reproduction(name: str, record: Mapping[str, Any]) -> Result:
    """Return the section about a table or figure of the paper, given as `secateur reproduce` writes it."""
    rows = tuple(dict(row) for row in record["rows"])
    columns = tuple(Column(key, key, "points" if is_numeric(rows, key) else "text") for key in headings(rows))
    missing = tuple(map(str, record["missing"]))
    title = f"{record['title']} ({record['paper']})"
    charts = _curves(rows) or _beside(rows)
    blocks: list[Block | None] = [
        Words("missing", "Not there yet", missing, listed=True, warning=True) if missing else None,
        Plot("curves", title, charts, label="Of") if charts else None,
        Table("rows", title, columns, rows, caption=str(record.get("note") or "")),
    ]
    key = {"item": str(record["title"]), "paper": str(record["paper"]), "rows": len(rows), "missing": len(missing)}
    return Result("reproduction", name, key, sections(("reproduction", title, blocks)))


def _curves(rows: Sequence[Mapping[str, Any]]) -> tuple[Chart, ...]:
    """Return for each network the values before and after retraining against the parameters kept."""
    charts = []
    for network in dict.fromkeys(str(row.get("network")) for row in rows):
        own = [row for row in rows if str(row.get("network")) == network and finite(row.get("PR")) is not None]
        for stage in STAGES:
            shown = [row for row in own if finite(row.get(stage)) is not None]
            methods = dict.fromkeys(str(row.get("method")) for row in shown)
            series = []
            for style, method in enumerate(methods):
                points = sorted((row for row in shown if str(row.get("method")) == method), key=lambda row: -row["PR"])
                x, y = [1 - row["PR"] / 100 for row in points], [row[stage] for row in points]
                series.append(Series(method, x, y, hover=points, style=style))
            if series:
                axes = Axis("parameters kept", percent=True), Axis(f"test, {stage}")
                charts.append(Chart("curves", network, *axes, tuple(series), choice=f"{network}, {stage}"))
    return tuple(charts)


def _beside(rows: Sequence[Mapping[str, Any]]) -> tuple[Chart, ...]:
    """Return the parameters removed, ours beside the published figure, for each network and method."""
    both = [row for row in rows if finite(row.get("PR")) is not None and finite(row.get("paper: PR")) is not None]
    if not both:
        return ()
    names = [", ".join(str(row.get(key)) for key in ("network", "method", "row")) for row in both]
    series = (
        Series("the paper", names, [row["paper: PR"] for row in both], "back", hover=both),
        Series("here", names, [row["PR"] for row in both], "bar", hover=both),
    )
    return (Chart("curves", "Parameters removed", Axis("", "category"), Axis("PR", suffix="%"), series),)
