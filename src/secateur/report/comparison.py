"""What the page shows of a comparison of methods: a value for each method and budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from secateur.report.blocks import Column, Facts, Plot, Result, Table, Words, sections
from secateur.report.charts import Axis, Chart, Series, finite
from secateur.tables import magnitude, percent

RESOURCES = {"params": "parameters", "macs": "MACs"}


def comparison(name: str, record: Mapping[str, Any]) -> Result:
    """Return the sections about a comparison, given as the plain data of `Comparison.info`."""
    rows = [dict(row) for row in record["rows"]]
    whole = record["before"]
    for row in rows:
        for what in RESOURCES:
            value = finite(row.get(what))
            row[f"{what}_part"] = value / whole[what] if value is not None and whole[what] else None
    accuracy = record["measure"] == "accuracy"
    facts = [("original", f"{magnitude(whole['params'])} parameters, {magnitude(whole['macs'])} MACs")]
    if finite(record.get("original")) is not None:
        facts.append(("accuracy of the original", percent(record["original"], 2)))
    keys = ("model", "weights", "data", "on", "evaluated", "samples", "repeats", "seed")
    facts += [(key, str(record[key])) for key in keys if record.get(key) is not None]
    wanted = int(record["repeats"]) * len(record["methods"]) * len(record["budgets"])
    done = sum(len(row.get("cells", ())) for row in rows)
    unfinished = f"Unfinished: {done} of {wanted} networks were evaluated."
    failed = tuple(f"{row['method']} at {row['budget']}: {row['error']}" for row in rows if row.get("error"))
    table = Table(
        "comparison",
        "All methods and budgets",
        (
            Column("method", "method", "text"),
            Column("budget", "budget", "text"),
            Column("params_part", "parameters kept", "percent"),
            Column("macs_part", "MACs kept", "percent"),
            Column("value", str(record["measure"]), "percent" if accuracy else "number"),
            Column("low", "lowest", "percent" if accuracy else "number"),
            Column("high", "highest", "percent" if accuracy else "number"),
            Column("repeats", "repeats", "count"),
            Column("seconds", "seconds"),
            Column("error", "failed because", "text"),
        ),
        tuple(rows),
    )
    charts = [chart(record, rows, what) for what in RESOURCES]
    notes = tuple(map(str, record.get("notes") or ()))
    key = {"methods": ", ".join(map(str, record["methods"])), "evaluated": record.get("evaluated")}
    return Result(
        "comparison",
        name,
        key,
        sections(
            (
                "comparison",
                "Comparison",
                [
                    None if record.get("finished") else Words("unfinished", "", (unfinished,), warning=True),
                    *map(Plot.of, charts),
                    table,
                    Words("failed", "Failed", failed, listed=True, warning=True) if failed else None,
                ],
            ),
            ("settings", "Settings", [Facts("about", "", tuple(facts))]),
            ("notes", "Notes", [Words("notes", "", notes, listed=True) if notes else None]),
        ),
        shared=(charts[0],),
    )


def chart(record: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], what: str = "macs") -> Chart:
    """Return the value of every method against the part of the parameters or MACs that it kept."""
    accuracy = record["measure"] == "accuracy"
    series = []
    for style, method in enumerate(record["methods"]):
        own = [row for row in rows if row["method"] == method and finite(row.get("value")) is not None]
        own.sort(key=lambda row: row[f"{what}_part"] or 0.0)
        if own:
            low, high = ([row.get(end) for row in own] for end in ("low", "high"))
            several = any(row["low"] != row["high"] for row in own)
            series.append(
                Series(
                    str(method),
                    [row[f"{what}_part"] for row in own],
                    [row["value"] for row in own],
                    low=low if several else None,
                    high=high if several else None,
                    hover=[_about(row, record["measure"]) for row in own],
                    style=style,
                )
            )
    original = finite(record.get("original"))
    if original is not None and series:
        parts = [x for one in series for x in one.x]
        series.append(Series("original", [min(parts), 1.0], [original, original], "level"))
    spread = " Bands: lowest and highest of the calibration sets." if any(one.low for one in series) else ""
    title = "Accuracy" if accuracy else "Output divergence"
    return Chart(
        what,
        f"{title} against {RESOURCES[what]} kept",
        Axis(f"{RESOURCES[what]} kept", percent=True),
        Axis("accuracy", percent=True) if accuracy else Axis("output divergence", "log"),
        tuple(series),
        f"Before any retraining, on {record.get('evaluated', 0):,} samples.{spread}",
    )


def _about(row: Mapping[str, Any], measure: str) -> dict[str, Any]:
    value = percent(row["value"], 2) if measure == "accuracy" else finite(row["value"])
    return {
        "method": row["method"],
        "budget": row["budget"],
        measure: value,
        "lowest": finite(row.get("low")),
        "highest": finite(row.get("high")),
        "parameters kept": percent(row["params_part"]),
        "MACs kept": percent(row["macs_part"]),
        "repeats": row.get("repeats"),
        "seconds": finite(row.get("seconds")),
    }
