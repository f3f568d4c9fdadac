"""Charts and the table of the groups of a pruned network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from secateur.report.blocks import Block, Column, Plot, Table
from secateur.report.charts import Axis, Chart, Series, finite
from secateur.tables import percent

COUNT_NAMES = {"params": "parameters", "macs": "MACs"}
KNOWN = {
    "divergence": ("divergence", "estimated output divergence if this group alone were cut, its consumers refitted"),
    "mass": ("sensitivity", "sum of the sensitivities of its channels"),
    "eps": ("eps", "relative error that sampling this many channels guarantees; from 1 on it guarantees nothing"),
    "dropped": ("dropped", "sum of the removed sensitivities, which bounds the error; from 1 on it guarantees nothing"),
}


def groups(info: Mapping[str, Any], rows: list[dict[str, Any]]) -> list[Block]:
    """Return charts and the table of all groups, prunable and kept."""
    if not rows:
        return []
    figures = tuple(Column(key, title, about=about) for key, (title, about) in KNOWN.items())
    table = Table(
        "groups",
        "All groups",
        (
            Column("name", "group", "code"),
            Column("status", "status", "text"),
            Column("before", "before", "count", "channels of the original"),
            Column("after", "after", "count", "channels that remain"),
            Column("kept", "kept", "percent"),
            Column("params", "parameters", "count", "in the channels of the group, before the cut"),
            Column("params_saved", "saved", "count", "parameters, if this group alone is cut"),
            Column("macs", "MACs", "count", "in the channels of the group, before the cut"),
            Column("macs_saved", "MACs saved", "count", "if this group alone is cut"),
            *figures,
            Column("reason", "kept because", "text"),
            Column("source", "where", "code"),
        ),
        tuple(rows),
        caption="A weight between two groups counts in both. "
        + " ".join(f"{title}: {about}." for key, (title, about) in KNOWN.items() if any(row.get(key) for row in rows)),
    )
    figured, saved = figures_by_group(rows), savings(rows)
    plots = [Plot.of(widths(rows)), *([saved] if saved else []), *([Plot.of(figured)] if figured else [])]
    return [*plots, *_scores(info, rows), table]


def widths(rows: Sequence[Mapping[str, Any]]) -> Chart:
    """Return the channels of every group before and after."""
    names = [row["name"] for row in rows]
    hover = [_about(row) for row in rows]
    return Chart(
        "groups",
        "Channels of every group, before and after",
        Axis("group", "category"),
        Axis("channels"),
        (
            Series("before", names, [row.get("before") for row in rows], "back", hover=hover),
            Series("after", names, [row.get("after") for row in rows], "bar", hover=hover),
        ),
    )


def _about(row: Mapping[str, Any]) -> dict[str, Any]:
    shown = {
        "group": row["name"],
        "before": _whole(row.get("before")),
        "after": _whole(row.get("after")),
        "kept": percent(row.get("kept")),
        "parameters": _whole(row.get("params")),
        "parameters saved": _whole(row.get("params_saved")),
        "MACs": _whole(row.get("macs")),
        "MACs saved": _whole(row.get("macs_saved")),
    }
    shown |= {title: finite(row.get(key)) for key, (title, _) in KNOWN.items()}
    return shown | {"kept because": row.get("reason") or None, "where": row.get("source") or None}


def _whole(value: Any) -> int | None:
    found = finite(value)
    return None if found is None else round(found)


def savings(rows: Sequence[Mapping[str, Any]]) -> Plot | None:
    """Return what each group held of the network's parameters and MACs, and what its cut saved."""
    charts = []
    for what, title in COUNT_NAMES.items():
        held = [row for row in rows if row.get(f"{what}_part") is not None]
        if held:
            names, hover = [row["name"] for row in held], [_about(row) for row in held]
            spent, saved = ([row[f"{what}{part}"] for row in held] for part in ("_part", "_saved_part"))
            charts.append(
                Chart(
                    "saved",
                    f"{title[0].upper()}{title[1:]} that each group held, and that its cut saved",
                    Axis("group", "category"),
                    Axis("part of the original", percent=True),
                    (
                        Series("held", names, spent, "back", hover=hover),
                        Series("saved", names, saved, "bar", hover=hover),
                    ),
                    choice=title,
                )
            )
    caption = "A weight between two groups counts in both, so the parts can add up to more than 100%."
    return (
        Plot("saved", "What each group held, and what its cut saved", tuple(charts), caption, "Of") if charts else None
    )


def figures_by_group(rows: Sequence[Mapping[str, Any]]) -> Chart | None:
    """Return the figures of the method for each group: estimated divergence, sensitivity, eps."""
    series = []
    for style, (key, (title, _)) in enumerate(KNOWN.items()):
        found = [row for row in rows if (finite(row.get(key)) or 0) > 0]
        if found:
            names, values = [row["name"] for row in found], [row[key] for row in found]
            series.append(Series(title, names, values, "line", hover=[_about(row) for row in found], style=style))
    if not series:
        return None
    about = " ".join(f"{title}: {words}." for key, (title, words) in KNOWN.items() if any(row.get(key) for row in rows))
    axes = Axis("group", "category"), Axis("value", "log")
    return Chart("figures", "Divergence, sensitivity and eps of every group", *axes, tuple(series), about)


def _scores(info: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Return the score of every unit of a group that a reader chooses, in falling order."""
    found = info.get("scores")
    charts = []
    for row in rows:
        scores = found.get(row["name"]) if isinstance(found, Mapping) else None
        values = [finite(one) for one in scores] if isinstance(scores, list) else []
        ranked = sorted((value for value in values if value is not None), reverse=True)
        if ranked:
            series = Series("score", list(range(1, len(ranked) + 1)), [float(f"{one:.4g}") for one in ranked])
            positive = all(one > 0 for one in ranked)
            charts.append(
                Chart(
                    "scores",
                    f"Scores in {row['name']}",
                    Axis("rank of the channel"),
                    Axis("score", "log" if positive else "linear"),
                    (series,),
                    choice=row["name"],
                )
            )
    caption = "The score of every channel by the method, before any cut; channels with large scores stay."
    return [Plot("scores", "Scores of single channels", tuple(charts), caption, label="Group")] if charts else []


def kept_parts(name: str, rows: Sequence[Mapping[str, Any]]) -> Chart:
    """Return the part that remains of every group, for several networks in one chart."""
    cut = [row for row in rows if row["status"] != "kept"]
    names, values = [row["name"] for row in cut], [row.get("kept") for row in cut]
    series = Series(name, names, values, "interval", hover=[{"result": name, **_about(row)} for row in cut])
    return Chart(
        "kept", "Channels kept in every group", Axis("group", "category"), Axis("kept", percent=True), (series,)
    )
