"""What the page shows of a sweep: accuracy against size for every method, all runs, training curves, settings."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from secateur._version import __version__
from secateur.report.blocks import Block, Column, Facts, Plot, Result, Table, Words, sections
from secateur.report.charts import Axis, Chart, Series, finite
from secateur.report.records import Records, read_curves
from secateur.report.sweep import Findings, Row, error, findings
from secateur.tables import percent

SINGLE_RUNS = 1500  # of more runs only the means are drawn; the table has all
X = {"params": "parameters", "macs": "MACs", "latency": "latency"}


def study(records: Records) -> Result:
    """Return the sections about a sweep, finished or not."""
    if not records.originals:
        waiting = Words("waiting", "", ("No network of this sweep is trained yet.",), warning=True)
        rest = [("summary", "Summary", [waiting, *_state(records)]), *_common(records)]
        return Result("sweep", records.name, {"networks": 0, "runs": 0}, sections(*rest))
    found = findings(records)
    charts = [chart for what in X if (chart := accuracy(records, found, what))]
    best = [found.commensurate(method) for method in found.methods]
    smallest = max((row.params_removed for row in best if row and found.is_near(row)), default=None)
    key = {
        "networks": found.networks,
        "runs": len(records.steps),
        "methods": ", ".join(found.methods),
        "original_error": found.original,
        "params_removed": smallest,
    }
    return Result(
        kind="sweep",
        name=records.name,
        key=key,
        sections=sections(
            ("summary", "Summary", [*_state(records), _summary(records, found), _chosen(found)]),
            ("size", "Accuracy and size" if found.unit else "Loss and size", [*map(Plot.of, charts), _means(found)]),
            ("runs", "Runs", [_runs(records)]),
            *_common(records),
        ),
        shared=tuple(charts[:2]),
    )


def _common(records: Records) -> list[tuple[str, str, Sequence[Block | None]]]:
    return [
        ("training", "Training", _training(records)),
        ("settings", "Settings", [_settings(records), _again(records)]),
    ]


def _state(records: Records) -> list[Block]:
    """Return what is missing, what stopped and what could not be read."""
    made: list[Block] = []
    if records.missing:
        made.append(Words("missing", "Not there yet", records.missing, listed=True, warning=True))
    if records.problems:
        made.append(Words("problems", "Left out", records.problems, listed=True, warning=True))
    version = records.versions.get("secateur")
    if version not in (None, __version__):
        text = f"This sweep was run by secateur {version}; this page was made by {__version__}."
        made.append(Words("version", "", (text,), warning=True))
    if records.stopped:
        texts = tuple(
            f"network {one['network']}, {one['method']}, step {one['step']}: {one['stopped']}"
            for one in records.stopped
        )
        made.append(Words("stopped", "Stopped", texts, listed=True, warning=True))
    return made


def _good(found: Findings, value: float) -> float:
    """Return accuracy in percent for an error, the loss itself for a loss."""
    return 100 - value if found.unit else value


def _summary(records: Records, found: Findings) -> Block:
    unit = found.unit
    name = "test accuracy" if unit else "test loss"
    facts = [
        ("networks", str(found.networks)),
        ("pruned and retrained", f"{len(records.steps):,} networks by {', '.join(found.methods) or 'no method yet'}"),
        (f"{name} of the original", f"{_good(found, found.original):.4g}{unit} (mean)"),
    ]
    return Facts("summary", "", tuple(facts))


def _chosen(found: Findings) -> Block | None:
    texts = []
    points = " points" if found.unit else ""
    for method in found.methods:
        if best := found.commensurate(method):
            within = f"within {found.tolerance:.2g}{points} of the original's validation error"
            which = f"the smallest network {within}" if found.is_near(best) else f"no network is {within}; the nearest"
            texts.append(
                f"{method}: {which} has {percent(best.params_removed)} of the parameters and "
                f"{percent(best.macs_removed)} of the MACs removed, test error {best.error:.2f}{found.unit} "
                f"({best.error - found.original:+.2f})"
            )
    about = "Chosen on validation data; marked by a star in the charts."
    return Words("chosen", "Chosen networks", tuple(texts), listed=True, caption=about) if texts else None


def _kept(row: Any, what: str, times: Mapping[tuple[str, float], float]) -> float | None:
    if what == "latency":
        return times.get((row.method, row.target))
    return 1 - float(getattr(row, f"{what}_removed"))


def accuracy(records: Records, found: Findings, what: str = "params") -> Chart | None:
    """Return accuracy or loss against the part of parameters, MACs or latency kept; None without such figures."""
    times = _latency_of_rows(records)
    series: list[Series] = []
    for style, method in enumerate(found.methods):
        rows = [row for row in found.rows if row.method == method and _kept(row, what, times) is not None]
        rows.sort(key=lambda row: _kept(row, what, times) or 0.0)
        if not rows:
            continue
        x = [_kept(row, what, times) for row in rows]
        y = [_good(found, row.error) for row in rows]
        several = any(row.networks > 1 for row in rows)
        series.append(
            Series(
                method,
                x,
                y,
                low=[value - row.spread for value, row in zip(y, rows)] if several else None,
                high=[value + row.spread for value, row in zip(y, rows)] if several else None,
                hover=[_about(found, row, _kept(row, "latency", times)) for row in rows],
                style=style,
            )
        )
        series += _single_runs(records, found, method, what, style)
        best = found.commensurate(method)
        if best and _kept(best, what, times) is not None:
            star = [_kept(best, what, times)], [_good(found, best.error)]
            about = {"chosen": "on validation data", **_about(found, best, _kept(best, "latency", times))}
            series.append(Series(f"{method}, chosen", *star, "star", hover=[about], style=style, of=method))
    if not series:
        return None
    low = min(x for one in series for x in one.x)
    original = _good(found, found.original)
    level = {"original": f"{original:.4g}{found.unit}"}
    series.append(Series("original", [low, 1.0], [original, original], "level", hover=[level, level]))
    most = max(row.networks for row in found.rows)
    caption = "After retraining, on test data. A star marks the network chosen on validation data for each method."
    fewer = "up to " if any(row.networks < most for row in found.rows) else ""
    spread = f" Means over {fewer}{most} networks; bands are one standard deviation." if most > 1 else ""
    name = "Test accuracy" if found.unit else "Test loss"
    return Chart(
        what,
        f"{name} against {X[what]} kept",
        Axis(f"{X[what]} kept", percent=True),
        Axis(name.lower(), suffix=found.unit),
        tuple(series),
        caption + spread,
    )


def _single_runs(records: Records, found: Findings, method: str, what: str, style: int) -> Iterable[Series]:
    """Yield the runs behind the means, unless there are too many or each mean is of one."""
    own = [one for one in records.steps if one["method"] == method]
    if len(records.steps) > SINGLE_RUNS or found.networks < 2 or what == "latency":
        return
    yield Series(
        f"{method}, single runs",
        [1 - float(one[f"{what}_removed"]) for one in own],
        [_good(found, error(one["retrained"]["test"])) for one in own],
        "points",
        hover=[
            {
                "method": method,
                "network": one["network"],
                "step": one["step"],
                "test": finite(_good(found, error(one["retrained"]["test"]))),
                "validation": finite(_good(found, error(one["retrained"]["validation"]))),
                "before retraining": finite(_good(found, error(one["pruned"]["test"]))) if "pruned" in one else None,
                "parameters kept": percent(1 - one["params_removed"]),
                "MACs kept": percent(1 - one["macs_removed"]),
            }
            for one in own
        ],
        style=style,
        of=method,
    )


def _about(found: Findings, row: Row, latency: float | None) -> dict[str, Any]:
    unit = found.unit
    return {
        "method": row.method,
        "test": f"{_good(found, row.error):.4g}{unit}" + (f" ±{row.spread:.2g}" if row.networks > 1 else ""),
        "change": f"{_good(found, row.error) - _good(found, found.original):+.2g}",
        "before retraining": f"{_good(found, row.pruned_error):.4g}{unit}",
        "validation": f"{_good(found, row.validation):.4g}{unit}",
        "parameters kept": percent(1 - row.params_removed),
        "MACs kept": percent(1 - row.macs_removed),
        "latency kept": None if latency is None else percent(latency),
        "target": percent(row.target),
        "networks": row.networks,
    }


def _latency_of_rows(records: Records) -> dict[tuple[str, float], float]:
    """Return the mean part of the original's time, by method and target."""
    parts: dict[tuple[str, float], list[float]] = defaultdict(list)
    for one in records.steps:
        timed = records.latency.get(one["path"])
        part = finite(timed.get("kept")) if isinstance(timed, Mapping) else None
        if part is not None:
            parts[one["method"], one["target"]].append(part)
    return {key: statistics.fmean(values) for key, values in parts.items()}


def _means(found: Findings) -> Block | None:
    if not found.rows:
        return None
    unit = " %" if found.unit else ""
    columns = (
        Column("method", "method", "text"),
        Column("target", "target", "percent"),
        Column("params_removed", "PR", "percent", "parameters removed"),
        Column("macs_removed", "FR", "percent", "MACs removed"),
        Column("pruned_error", f"test error, pruned{unit}", "points"),
        Column("error", f"test error, retrained{unit}", "points"),
        Column("spread", "±", "points", "one standard deviation over the networks"),
        Column("change", "change", "points", "against the original"),
        Column("validation", f"validation error{unit}", "points"),
        Column("networks", "networks", "count"),
    )
    rows = tuple(
        vars(row) | {"change": row.error - found.original, "spread": row.spread if row.networks > 1 else None}
        for row in found.rows
    )
    return Table("means", "Means over the networks", columns, rows)


def _runs(records: Records) -> Block | None:
    rows = []
    for one in records.steps:
        retrained, before = one["retrained"], one.get("pruned")
        timed = records.latency.get(one["path"])
        rows.append(
            {
                **{key: one.get(key) for key in ("network", "method", "step", "target", "params", "macs")},
                "params_removed": _short(one["params_removed"]),
                "macs_removed": _short(one["macs_removed"]),
                "latency": _short(timed.get("kept")) if isinstance(timed, Mapping) else None,
                "pruned": _short(error(before["test"])) if isinstance(before, Mapping) else None,
                "test": _short(error(retrained["test"])),
                "validation": _short(error(retrained["validation"])),
                "loss": _short(retrained["test"].get("loss")),
                "verification": _short(one.get("verification")),
            }
        )
    columns = (
        Column("network", "network", "count"),
        Column("method", "method", "text"),
        Column("step", "step", "count"),
        Column("target", "target", "percent"),
        Column("params", "parameters", "count"),
        Column("macs", "MACs", "count"),
        Column("params_removed", "PR", "percent", "parameters removed"),
        Column("macs_removed", "FR", "percent", "MACs removed"),
        Column("latency", "latency kept", "percent"),
        Column("pruned", "test error, pruned", "points"),
        Column("test", "test error", "points"),
        Column("validation", "validation error", "points"),
        Column("loss", "test loss"),
        Column("verification", "verification", about="largest relative difference between cut and masked network"),
    )
    return Table("runs", "Every run", columns, tuple(rows)) if rows else None


def _short(value: Any) -> float | None:
    found = finite(value)
    return None if found is None else float(f"{found:.6g}")


def _training(records: Records) -> list[Block]:
    """Return training loss and validation error by epoch, as means over the networks."""
    methods = {one["path"].split("/")[1]: one["method"] for one in records.steps}
    several: dict[str, dict[str, list[list[Mapping[str, Any]]]]] = defaultdict(lambda: defaultdict(list))
    for path, lines in read_curves(records.folder).items():
        parts = path.split("/")
        method = "originals" if len(parts) == 2 else str(methods.get(parts[1], parts[1]))
        several[method]["original" if len(parts) == 2 else parts[-1].replace("-", " ")].append(lines)
    blocks: list[Block] = []
    for name, title in (("loss", "Training loss"), ("validation", "Validation error")):
        charts = [chart for method, curves in several.items() if (chart := _curves(name, title, method, curves)).series]
        if charts:
            caption = "Means over the networks, by epoch."
            blocks.append(Plot(name, title, tuple(charts), caption, label="Of"))
    return blocks


def _curves(name: str, title: str, method: str, curves: Mapping[str, list[list[Mapping[str, Any]]]]) -> Chart:
    series = []
    unit = ""
    for style, (step, logs) in enumerate(curves.items()):
        by_epoch: dict[int, list[float]] = defaultdict(list)
        for line in (line for log in logs for line in log):
            value = finite(line.get("loss"))
            if name == "validation":
                figures = line.get("validation")
                value = finite(error(figures)) if isinstance(figures, Mapping) else None
                unit = "%" if isinstance(figures, Mapping) and figures.get("top1") is not None else unit
            if value is not None:
                by_epoch[line["epoch"]].append(value)
        if by_epoch:
            epochs = sorted(by_epoch)
            means = [float(f"{statistics.fmean(by_epoch[epoch]):.5g}") for epoch in epochs]
            series.append(Series(step, epochs, means, style=style))
    what = "validation error" if name == "validation" else "training loss"
    return Chart(name, title, Axis("epoch"), Axis(what, suffix=unit), tuple(series), choice=method)


def _settings(records: Records) -> Block:
    facts = []
    for key, value in records.recipe.items():
        if isinstance(value, Mapping):
            facts += [(f"{key}: {name}", _text(one)) for name, one in value.items()]
        elif value not in (None, ""):
            facts.append((str(key), _text(value)))
    facts += [(f"versions: {name}", str(value)) for name, value in records.versions.items()]
    return Facts("settings", "", tuple(facts))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _again(records: Records) -> Block:
    facts = (
        ("run or continue", f"secateur sweep {records.name} --resume  # with the settings above"),
        ("this page", f"secateur report {records.folder.name} --out page.html"),
    )
    return Facts("again", "To make it again", facts)
