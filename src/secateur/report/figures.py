"""The charts of the report page as matplotlib figures, for papers: PDF, SVG or PNG in the width of a column.

>>> sc.figures.groups(res).savefig("groups.pdf")
>>> sc.figures.accuracy("runs/lenet5", x="macs", width="full").savefig("accuracy.svg")

A source is a path as for `secateur report` (a sweep's folder, a pruned network, a JSON file), or an object: the result
of `prune`, `compare`, `bench` or `read_sweep`. Lines differ in colour, mark and dashes, for colour-blind readers and
for print in grey. matplotlib is an optional package.
"""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from secateur.costs.timing import Bench
from secateur.errors import UsageError
from secateur.optional import require
from secateur.report.blocks import Network, Result
from secateur.report.charts import Axis, Chart, Series, finite
from secateur.report.sources import of_record, read_source
from secateur.report.timing import record_of, timing

WIDTHS = {"column": 3.35, "full": 6.9}  # inches, in two-column papers
MARKS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "x": "X",
    "triangle-down": "v",
    "cross": "P",
    "star": "*",
}
LINES = {"solid": "-", "dash": (0, (5, 2)), "dot": (0, (1, 1.5)), "dashdot": (0, (5, 1.5, 1, 1.5))}
MANY = 12  # names on an axis that are written upright
ROW = 0.13  # inches for a layer of a network
NAMES = 60  # names on an axis that are all written

Width = str | float


def accuracy(sweep: Any, x: str = "params", *, width: Width = "column") -> Any:
    """Return accuracy or loss against what is kept, with a band of one standard deviation for each method.

    Args:
        sweep: the folder of a sweep, or what `read_sweep` returned.
        x: `params`, `macs` or `latency`.
        width: `"column"`, `"full"`, or inches.
    """
    return figure(sweep, x, width=width)


def training(sweep: Any, what: str = "loss", of: str = "originals", *, width: Width = "column") -> Any:
    """Return training curves of a sweep.

    Args:
        sweep: the folder of a sweep, or what `read_sweep` returned.
        what: `loss` or `validation`.
        of: `originals`, or a method.
        width: `"column"`, `"full"`, or inches.
    """
    return figure(sweep, f"{what}:{of}", width=width)


def groups(res: Any, *, width: Width = "column") -> Any:
    """Return the channels of every group before and after pruning."""
    return figure(res, "groups", width=width)


def saved(res: Any, of: str = "parameters", *, width: Width = "column") -> Any:
    """Return what every group held, and what its cut saved, of `"parameters"` or of `"MACs"`."""
    return figure(res, f"saved:{of}", width=width)


def repair(res: Any, *, width: Width = "column") -> Any:
    """Return the error of every layer before and after the repair."""
    return figure(res, "repair", width=width)


def comparison(found: Any, x: str = "macs", *, width: Width = "column") -> Any:
    """Return the value of every method against the `params` or `macs` that it kept."""
    return figure(found, x, width=width)


def times(bench: Any, *, width: Width = "column") -> Any:
    """Return the times of two networks, with quartiles."""
    return figure(bench, "times", width=width)


def network(res: Any, *, width: Width = "column") -> Any:
    """Return the layers of a network with their connections: width = channels, filled = kept."""
    found = _networks(result_of(res))
    if not found:
        remedy = "pass the result of prune, or a file that it was saved to"
        raise UsageError("this source has no layers to draw", remedy=remedy)
    return draw_network(found[0].layers, width=width)


def has_network(result: Result) -> bool:
    """Return whether `network` can draw a result."""
    return bool(_networks(result))


def as_bytes(figure: Any, form: str) -> bytes:
    """Return a figure as the content of a `pdf`, `svg` or `png` file; equal figures give equal bytes."""
    stream = io.BytesIO()
    dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
    with require("matplotlib", install="'secateur[figures]'").rc_context({"svg.hashsalt": "secateur"}):
        figure.savefig(stream, format=form, metadata=dates[form])
    return stream.getvalue()


def _networks(result: Result) -> list[Network]:
    return [block for section in result.sections for block in section.blocks if isinstance(block, Network)]


def figure(source: Any, chart: str | None = None, *, width: Width = "column", height: float | None = None) -> Any:
    """Return a chart of a source; without a name, its first one.

    >>> sc.figures.figure("comparison.json", "macs", width="full").savefig("comparison.pdf")
    """
    charts = result_of(source).charts
    if not charts:
        raise UsageError("this source has no charts", remedy="see it as a page: secateur report SOURCE --out page.html")
    name = chart or next(iter(charts))
    if name not in charts:
        raise UsageError(f"there is no chart {name!r}", remedy=f"use one of {', '.join(charts)}")
    return draw(charts[name], width=width, height=height)


def result_of(source: Any) -> Result:
    """Return what the page would show of a source: a path or an object."""
    if isinstance(source, Result):
        return source
    if isinstance(source, str | Path):
        return read_source(source)
    if isinstance(source, Bench):
        return timing("timing", record_of(source))
    if isinstance(made := getattr(source, "result", None), Result):
        return made
    record = getattr(source, "info", None)
    if record is None:
        raise UsageError(
            f"a {type(source).__name__} cannot be drawn",
            remedy="pass a path, or the result of prune, compare, bench or read_sweep",
        )
    return of_record(type(source).__name__.lower(), record)


def draw(chart: Chart, *, width: Width = "column", height: float | None = None) -> Any:
    """Return a chart as a matplotlib Figure."""
    figure, axes = _empty(width, height)
    names: list[str] = []
    for series in chart.series:
        if chart.x.scale == "category":
            names += [name for name in series.x if name not in names]
    places = {name: place for place, name in enumerate(names)}
    for series in chart.series:
        _add(axes, series, [places[x] for x in series.x] if places else series.x)
    _label(axes, chart)
    if places:
        step = -(-len(names) // NAMES)
        axes.set_xticks(range(0, len(names), step), names[::step], rotation=0 if len(names) < 5 else 90)
        axes.tick_params(axis="x", labelsize=7 if len(names) <= MANY else 5)
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        axes.legend(handles, labels, frameon=False, fontsize=7)
    return figure


def draw_network(layers: Sequence[Any], *, width: Width = "column") -> Any:
    """Return the layers of a network as a matplotlib Figure; every layer has a row and a lane."""
    rows, lanes = max(one["row"] for one in layers) + 1, sorted({one["lane"] for one in layers})
    figure, axes = _empty(width, 0.4 + ROW * rows)
    span = lanes[-1] - lanes[0] + 1.4
    widest = 0.45 * figure.get_size_inches()[0] / span  # of a bar, in inches
    colours = require("matplotlib", install="'secateur[figures]'").colormaps["cividis_r"]
    most = max(1, *(one["before"] for one in layers))
    for one in layers:
        for start in (layers[source] for source in one["inputs"]):
            distance = one["row"] - start["row"]
            bend = (widest + 0.2) / (ROW * distance) if distance > 1 else 0.0  # around the bars in between
            line = {"arrowstyle": "-", "linewidth": 0.5, "color": "0.5", "connectionstyle": f"arc3,rad={bend:.3f}"}
            ends = (one["lane"], -one["row"]), (start["lane"], -start["row"])
            axes.annotate("", *ends, arrowprops={**line, "shrinkA": 0, "shrinkB": 0, "zorder": 1})
    for one in layers:
        x, y = one["lane"], -one["row"]
        if one["kind"] == "output" or (one["kind"] == one["name"] and len(one["inputs"]) > 1):
            box = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"}
            axes.text(x, y, one["name"], fontsize=4.5, ha="center", va="center", zorder=4, bbox=box)
            continue
        wide, part = 0.05 + 0.4 * (one["before"] / most) ** 0.5, one["after"] / one["before"] if one["before"] else 1.0
        axes.barh(y, wide, 0.6, x - wide / 2, color="white", edgecolor="0.3", linewidth=0.4, zorder=2)
        axes.barh(y, wide * part, 0.6, x - wide / 2, color=colours(part), linewidth=0, zorder=3)
        size = f"{one['before']}→{one['after']}" if one["before"] != one["after"] else str(one["before"])
        axes.text(x + wide / 2 + 0.02, y, f"{one['name']} {size}".replace("$", r"\$"), fontsize=4.5, va="center")
    axes.set_xlim(lanes[0] - 0.6, lanes[-1] + 0.8)
    axes.set_ylim(-rows + 0.4, 0.6)
    axes.axis("off")
    return figure


def _empty(width: Width, height: float | None) -> tuple[Any, Any]:
    """Return a figure of that size with one pair of axes."""
    inches = WIDTHS.get(width) if isinstance(width, str) else float(width)
    if inches is None or not 0 < inches <= 100:
        raise UsageError(f"the width is {width!r}", remedy=f"use {' or '.join(WIDTHS)}, or a number of inches")
    made = require("matplotlib.figure", install="'secateur[figures]'").Figure(
        figsize=(inches, height or min(0.75 * inches, 3.2)), layout="constrained", dpi=200
    )
    if "IPython" in sys.modules:  # so that notebooks show figures that pyplot has not made
        with suppress(Exception):
            importlib.import_module("matplotlib_inline.backend_inline")
    axes = made.add_subplot()
    axes.tick_params(labelsize=7)
    return made, axes


def _label(axes: Any, chart: Chart) -> None:
    ticker = require("matplotlib.ticker", install="'secateur[figures]'")
    sides: tuple[tuple[Axis, Any, Callable[..., Any], Callable[..., Any]], ...] = (
        (chart.x, axes.xaxis, axes.set_xlabel, axes.set_xscale),
        (chart.y, axes.yaxis, axes.set_ylabel, axes.set_yscale),
    )
    for about, side, label, scale in sides:
        unit = f" ({about.suffix})" if about.suffix else ""
        label(f"{about.title}{unit}", fontsize=8)
        if about.scale == "log":
            scale("log")
        if about.percent:
            side.set_major_formatter(ticker.PercentFormatter(1.0, decimals=None))
    axes.grid(True, color="0.9", linewidth=0.5)
    axes.set_axisbelow(True)
    for edge in ("top", "right"):
        axes.spines[edge].set_visible(False)


def _add(axes: Any, series: Series, x: Sequence[Any]) -> None:
    y = [float("nan") if finite(one) is None else one for one in series.y]
    label = "_hidden" if series.of else series.name.replace("$", r"\$")
    look = {"color": series.colour, "label": label}
    mark = {"marker": MARKS[series.mark], "markersize": 3.5}
    if series.kind == "level":
        axes.plot(x, y, linestyle=LINES["dash"], linewidth=1, **look)
    elif series.kind == "back":
        axes.bar(x, y, 0.8, **(look | {"color": "0.8"}))
    elif series.kind == "bar":
        axes.bar(x, y, 0.5, **look)
    elif series.kind == "star":
        axes.plot(x, y, linestyle="", markerfacecolor="none", **(look | mark | {"markersize": 9}))
    elif series.kind == "points":
        axes.plot(x, y, linestyle="", alpha=0.4, **(look | mark | {"markersize": 2}))
    elif series.kind == "interval":
        below, above = ([_distance(*pair) for pair in zip(y, ends or y)] for ends in (series.low, series.high))
        axes.errorbar(x, y, [below, above], linestyle="", capsize=3, **look, **mark)
    else:
        axes.plot(x, y, linestyle=LINES[series.dash], linewidth=1.2, **look, **mark)
        if series.low is not None and series.high is not None:
            low, high = ([float("nan") if finite(v) is None else v for v in side] for side in (series.low, series.high))
            axes.fill_between(x, low, high, color=series.colour, alpha=0.18, linewidth=0)


def _distance(y: float | None, end: float | None) -> float:
    return 0.0 if y is None or end is None else abs(end - y)
