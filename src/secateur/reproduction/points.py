"""The results of a run as points: one for each method and target, means and deviations over the networks."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from secateur.errors import UsageError
from secateur.report.records import Records
from secateur.report.sweep import error


@dataclass(frozen=True)
class Point:
    """One target of one method. Errors are percentages, or losses of a regression, on test data unless it says so.

    Changes are from the originals of the same networks, also where some networks are not finished.
    """

    method: str
    target: float
    networks: int
    pr: float
    fr: float
    error: float
    spread: float
    change: float
    change5: float | None
    validation: float
    validation_change: float
    pruned: float  # error before retraining
    pruned_spread: float
    ms: float | None = None  # latency at batch 1
    latency: float | None = None  # as a part of the original's


@dataclass(frozen=True)
class Results:
    """The points of one run, and the errors of its original networks."""

    label: str
    recipe: Mapping[str, Any]
    protocol: str
    unit: str  # "%", or "" for a loss
    original: float
    original_spread: float
    original5: float | None
    networks: int
    points: tuple[Point, ...]
    missing: tuple[str, ...]

    @property
    def methods(self) -> list[str]:
        """The methods with points, in the order of the recipe."""
        known = [str(one) for one in self.recipe.get("methods", ())]
        found = dict.fromkeys(point.method for point in self.points)
        return [one for one in known if one in found] + [one for one in found if one not in known]


def results(label: str, records: Records) -> Results:
    """Return the points of a run with at least one original network."""
    steps: dict[tuple[str, int], list[Mapping[str, Any]]] = defaultdict(list)
    for record in records.steps:
        steps[record["method"], record["step"]].append(record)
    originals = {one["network"]: one for one in records.originals}
    tests = [one["test"] for one in records.originals]
    errors = [error(one) for one in tests]
    return Results(
        label=label,
        recipe=records.recipe,
        protocol=in_words(records.recipe),
        unit="" if tests[0].get("top1") is None else "%",
        original=statistics.fmean(errors),
        original_spread=_spread(errors),
        original5=_error5(tests),
        networks=len(errors),
        points=tuple(
            _point(method, several, originals, records.latency) for (method, _), several in sorted(steps.items())
        ),
        missing=records.missing,
    )


def selected(found: Results, method: str, row: str) -> Point | None:
    """Return the network of a table row, selected on validation data; None without points of the method.

    >>> selected(found, "pfp", "within 0.5").pr
    0.8417

    `within X`: the smallest network whose error is at most X points above the original's; where there is none, the
    nearest. `original`: the smallest whose error is not above the original's, else the nearest. `lowest`: the least
    error.
    """
    points = [point for point in found.points if point.method == method and math.isfinite(point.validation_change)]
    if not points:
        return None
    if row == "lowest":
        return min(points, key=lambda point: (point.validation_change, -point.pr))
    allowed = 0.0 if row == "original" else _points(row)
    near = [point for point in points if point.validation_change <= allowed + 1e-9]
    return max(near, key=lambda point: point.pr) if near else min(points, key=lambda point: point.validation_change)


def in_words(recipe: Mapping[str, Any]) -> str:
    """Return the protocol of a stored recipe in one line."""
    train, retrain = recipe["train"], recipe["retrain"]
    start = f"from {recipe['weights']}" if recipe.get("weights") else f"trained for {train['epochs']} epochs"
    again = f"retrained for {retrain['epochs']}" if retrain["epochs"] else "not retrained"
    teacher = " with the original as teacher" if retrain["epochs"] and retrain.get("teacher") else ""
    steps = "cascade" if recipe["cascade"] else "one shot"
    checked = ", selected on half of the test data" if recipe.get("validation") == "test" else ""
    checked += f", at most {recipe['images']} images of each part" if recipe.get("images") else ""
    networks = f"{recipe['networks']} network{'s' * (recipe['networks'] > 1)}"
    return f"{recipe['name']}: {networks} {start}, {steps}, {again}{teacher}{checked}"


def _points(row: str) -> float:
    words = row.split()
    if len(words) != 2 or words[0] != "within":
        raise UsageError(f"there is no row {row!r}", remedy="use 'within 0.5', 'original' or 'lowest'")
    return float(words[1])


def _point(
    method: str,
    records: Sequence[Mapping[str, Any]],
    originals: Mapping[int, Mapping[str, Any]],
    times: Mapping[str, Any],
) -> Point:
    own = [record.get("original") or originals[record["network"]] for record in records]
    after = [record["retrained"]["test"] for record in records]
    before = [error(record["pruned"]["test"]) for record in records]
    errors = [error(one) for one in after]
    checks = [error(record["retrained"]["validation"]) for record in records]
    top5, top5_before = _error5(after), _error5([one["test"] for one in own])
    return Point(
        method=method,
        target=records[0]["target"],
        networks=len(records),
        pr=_mean(record["params_removed"] for record in records),
        fr=_mean(record["macs_removed"] for record in records),
        error=_mean(errors),
        spread=_spread(errors),
        change=_mean(value - error(one["test"]) for value, one in zip(errors, own, strict=True)),
        change5=None if top5 is None or top5_before is None else top5 - top5_before,
        validation=_mean(checks),
        validation_change=_mean(value - error(one["validation"]) for value, one in zip(checks, own, strict=True)),
        pruned=_mean(before),
        pruned_spread=_spread(before),
        ms=_latency(records, times, "ms"),
        latency=_latency(records, times, "kept"),
    )


def _latency(records: Sequence[Mapping[str, Any]], times: Mapping[str, Any], what: str) -> float | None:
    """Return the mean of a time over the networks; None if one of them was not timed."""
    found = [times[record["path"]][what] for record in records if record.get("path") in times]
    return _mean(found) if found and len(found) == len(records) else None


def _error5(figures: Sequence[Mapping[str, Any]]) -> float | None:
    values = [one.get("top5") for one in figures]
    return None if any(value is None for value in values) else _mean(100 * (1 - float(value)) for value in values)  # type: ignore[arg-type]


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


def _spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else 0.0
