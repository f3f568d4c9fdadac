"""Charts as plain data: what is drawn, without how. The page draws them with Plotly, `figures` with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from secateur.tables import number

# Colours of Okabe and Ito, the fourth a little darker: their contrast with the page, light or dark, is at least 3 to 1.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#c66a9c", "#767676")
MARKS = ("circle", "square", "diamond", "triangle-up", "x", "triangle-down", "cross")
DASHES = ("solid", "dash", "dot", "dashdot")
NEUTRAL = "#767676"

Kind = Literal["line", "points", "level", "star", "bar", "back", "interval"]
Scale = Literal["linear", "log", "category"]
Hover = Mapping[str, Any]


@dataclass(frozen=True)
class Series:
    """One set of points under one name.

    Attributes:
        name: for the legend.
        x, y: the points; None in `y` is a gap.
        kind: a line with marks, marks only, a level across the chart, stars, bars, pale bars behind others, or
            marks with intervals.
        low, high: a band around a line, or the ends of the intervals.
        hover: for each point what is shown beside it, by name.
        style: which colour, mark and dashes.
        of: name of another series that this one belongs to: it has no place of its own in the legend.
    """

    name: str
    x: Sequence[Any]
    y: Sequence[float | None]
    kind: Kind = "line"
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    hover: Sequence[Hover] = ()
    style: int = 0
    of: str = ""

    @property
    def colour(self) -> str:
        return NEUTRAL if self.kind in ("level", "back") else COLOURS[self.style % len(COLOURS)]

    @property
    def mark(self) -> str:
        return "star" if self.kind == "star" else MARKS[self.style % len(MARKS)]

    @property
    def dash(self) -> str:
        return "dash" if self.kind == "level" else DASHES[self.style % len(DASHES)]


@dataclass(frozen=True)
class Axis:
    """The title of an axis, its scale, and whether its numbers are parts of one to be shown in percent."""

    title: str
    scale: Scale = "linear"
    percent: bool = False
    suffix: str = ""


@dataclass(frozen=True)
class Chart:
    """A chart with its axes and series.

    Attributes:
        name: short, for file names and `secateur figure --chart`.
        title: above the chart.
        caption: what a reader should know, below it.
    """

    name: str
    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    caption: str = ""
    choice: str = ""  # of several charts in one place, what this one shows


def finite(value: Any) -> float | None:
    """Return a number, None for anything that cannot be drawn."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def hover_text(about: Hover) -> list[str]:
    """Return the lines that are shown beside a point.

    >>> hover_text({"method": "pfp", "error": 1.2345})
    ['method: pfp', 'error: 1.23']
    """
    return [f"{name}: {_shown(value)}" for name, value in about.items() if value is not None]


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return number(value) if value >= 0 or not math.isfinite(value) else f"-{number(-value)}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def plotly(chart: Chart) -> dict[str, Any]:
    """Return a chart as the data and layout of Plotly, plain data that JSON can hold."""
    traces = [trace for series in chart.series for trace in _traces(series)]
    layout = {"xaxis": _axis(chart.x, chart), "yaxis": _axis(chart.y, chart)}
    bars = any(series.kind in ("bar", "back") for series in chart.series)
    return {"data": traces, "layout": layout | ({"barmode": "overlay", "bargap": 0.15} if bars else {})}


def _axis(axis: Axis, chart: Chart) -> dict[str, Any]:
    made: dict[str, Any] = {"title": {"text": escaped(axis.title)}}
    if axis.scale != "linear":
        made["type"] = axis.scale
    if axis.scale == "log":
        made["exponentformat"] = "power"
    if axis.percent:
        made["tickformat"] = ".0%"
    if axis.suffix:
        made["ticksuffix"] = axis.suffix
    return made


def _traces(series: Series) -> Iterable[dict[str, Any]]:
    text = ["<br>".join(escaped(line) for line in hover_text(one)) for one in series.hover]
    base: dict[str, Any] = {
        "name": escaped(series.name),
        "legendgroup": escaped(series.of or series.name),
        "x": [escaped(x) if isinstance(x, str) else x for x in series.x],
        "y": [finite(y) for y in series.y],
    }
    if text:
        base |= {"text": text, "textposition": "none", "hovertemplate": "%{text}<extra>%{fullData.name}</extra>"}
    if series.of:
        base["showlegend"] = False
    marker: dict[str, Any] = {"color": series.colour, "symbol": series.mark, "size": 8}
    line = {"color": series.colour, "dash": series.dash, "width": 2}
    if series.kind in ("bar", "back"):
        width = 0.8 if series.kind == "back" else 0.5
        opacity = 0.35 if series.kind == "back" else 1.0
        yield base | {"type": "bar", "marker": {"color": series.colour, "opacity": opacity}, "width": width}
        return
    if series.kind == "line" and series.low is not None and series.high is not None:
        yield _band(base, series)
    if series.kind == "interval" and series.low is not None and series.high is not None:
        base["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [_gap(high, y) for high, y in zip(series.high, series.y)],
            "arrayminus": [_gap(y, low) for low, y in zip(series.low, series.y)],
            "color": series.colour,
        }
    modes = {"line": "lines+markers", "level": "lines"}
    if series.kind == "star":
        marker |= {"size": 17, "line": {"width": 2, "color": series.colour}, "symbol": "star-open"}
    if series.kind == "points":
        marker |= {"size": 5, "opacity": 0.45}
    drawn = {"type": "scatter", "mode": modes.get(series.kind, "markers"), "marker": marker}
    yield base | drawn | ({"line": line} if series.kind in modes else {})


def _band(base: Mapping[str, Any], series: Series) -> dict[str, Any]:
    """Return the area between the low and the high ends."""
    ends = [
        (x, low, high)
        for x, low, high in zip(base["x"], series.low or (), series.high or ())
        if finite(low) is not None and finite(high) is not None
    ]
    return {
        "type": "scatter",
        "name": base["name"],
        "legendgroup": base["legendgroup"],
        "showlegend": False,
        "hoverinfo": "skip",
        "mode": "lines",
        "line": {"width": 0, "color": series.colour},
        "fill": "toself",
        "fillcolor": f"{series.colour}33",
        "x": [x for x, *_ in ends] + [x for x, *_ in reversed(ends)],
        "y": [high for *_, high in ends] + [low for _, low, _ in reversed(ends)],
    }


def _gap(high: float | None, low: float | None) -> float | None:
    return None if high is None or low is None else max(0.0, high - low)


def escaped(text: str) -> str:
    """Return a text that Plotly shows as it is: some tags would have a meaning."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
