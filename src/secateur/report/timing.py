"""What the page shows of a timing: the times of two networks with their quartiles, and the speedup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from secateur.costs.timing import Bench
from secateur.report.blocks import Block, Column, Facts, Plot, Result, Table, Words, sections
from secateur.report.charts import Axis, Chart, Series


def record_of(bench: Bench, first: str = "first", second: str = "second") -> dict[str, Any]:
    """Return a timing as the plain data that `secateur bench --json` prints."""
    networks = [{"network": name} | asdict(one) for name, one in ((first, bench.first), (second, bench.second))]
    names = ("speedup", "low", "high", "confidence", "measurable", "verdict")
    return {"networks": networks} | {name: getattr(bench, name) for name in names}


def timing(name: str, record: Mapping[str, Any]) -> Result:
    """Return the section about a timing, given as the plain data that `secateur bench --json` prints."""
    rows = tuple(record["networks"])
    columns = (
        Column("network", "network", "code"),
        Column("params", "parameters", "count"),
        Column("macs", "MACs", "count"),
        Column("median_ms", "median", "ms"),
        Column("q25_ms", "lower quartile", "ms"),
        Column("q75_ms", "upper quartile", "ms"),
        Column("runs", "runs", "count"),
        Column("threads", "threads", "count"),
    )
    facts = tuple((key, str(record[key])) for key in ("input", "threads", "seed", "weights") if record.get(key))
    blocks: list[Block | None] = [
        Words("verdict", "", (f"The second network compared with the first: {record['verdict']}.",)),
        Plot.of(chart(record)),
        Table("times", "Times", columns, rows),
        Facts("about", "", facts) if facts else None,
    ]
    key = {"speedup": record["speedup"], "low": record["low"], "high": record["high"]}
    return Result("timing", name, key, sections(("timing", "Timing", blocks)))


def chart(record: Mapping[str, Any]) -> Chart:
    """Return the median time of both networks, with quartiles."""
    rows = record["networks"]
    names = [f"{label}  {row['network']}" for label, row in zip("AB", rows)]
    series = Series(
        "median, with quartiles",
        names,
        [row["median_ms"] for row in rows],
        "interval",
        low=[row["q25_ms"] for row in rows],
        high=[row["q75_ms"] for row in rows],
        hover=[{"network": row["network"], "median ms": row["median_ms"], "runs": row["runs"]} for row in rows],
    )
    level = float(record["confidence"])
    about = f"B is {record['speedup']:.3f} times as fast, {level:.0%} interval {record['low']:.3f} to "
    axes = Axis("network", "category"), Axis("time of a forward pass, ms")
    return Chart("times", "Time of a forward pass", *axes, (series,), f"{about}{record['high']:.3f}.")
