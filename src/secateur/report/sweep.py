"""The results of a sweep: a table, the smallest accurate network of each method, and a curve in text."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from secateur import tables
from secateur.errors import UsageError
from secateur.report.records import Records, read_records

WITHIN = 0.5  # percentage points of validation error that a commensurate network may lose
MARKS = "ox+*#@%$=~"
SEVERAL, UNPRUNED = "&", "·"  # marks of several methods in one cell, and of the original


@dataclass(frozen=True)
class Row:
    """One target of one method: means over the networks."""

    method: str
    target: float
    networks: int
    params_removed: float
    macs_removed: float
    error: float  # on test data after retraining: percent, or the loss of a regression
    spread: float
    validation: float
    pruned_error: float  # on test data before retraining


@dataclass(frozen=True)
class Findings:
    """The records of a run folder."""

    name: str
    unit: str  # "%", or "" for a loss
    original: float  # mean error on test data
    original_validation: float
    networks: int
    rows: tuple[Row, ...]
    stopped: tuple[str, ...]

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(row.method for row in self.rows))

    @property
    def tolerance(self) -> float:
        return WITHIN if self.unit else 0.05 * self.original_validation

    def is_near(self, row: Row) -> bool:
        """Return whether the validation error is within the tolerance of the original's."""
        return row.validation <= self.original_validation + self.tolerance

    def commensurate(self, method: str) -> Row | None:
        """Return the smallest network within the tolerance; where there is none, the one with the least error."""
        rows = [row for row in self.rows if row.method == method]
        near = [row for row in rows if self.is_near(row)]
        if near:
            return max(near, key=lambda row: row.params_removed)
        return min(rows, key=lambda row: row.validation, default=None)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        best = {method: self.commensurate(method) for method in self.methods}
        return {
            "recipe": self.name,
            "networks": self.networks,
            "original": {"error": self.original, "validation": self.original_validation},
            "rows": [vars(row) for row in self.rows],
            "commensurate": {method: vars(row) for method, row in best.items() if row},
            "stopped": list(self.stopped),
        }


def read_run(folder: Path) -> Findings:
    """Return the records of a run, finished or not.

    >>> rich.print(as_text(read_run(Path("runs/lenet5-quick"))))
    """
    records = read_records(folder)
    if not records.originals:
        raise UsageError(f"no network of the run in {folder} is trained yet", remedy="wait, or sweep with --resume")
    return findings(records)


def findings(records: Records) -> Findings:
    """Return the means over the networks of a run that has at least one original."""
    steps: dict[tuple[str, int], list[Mapping[str, Any]]] = defaultdict(list)
    for record in records.steps:
        steps[record["method"], record["step"]].append(record)
    originals = records.originals
    return Findings(
        name=records.name,
        unit="" if originals[0]["test"].get("top1") is None else "%",
        original=_mean(error(one["test"]) for one in originals),
        original_validation=_mean(error(one["validation"]) for one in originals),
        networks=len(originals),
        rows=tuple(_row(method, several) for (method, _), several in sorted(steps.items())),
        stopped=tuple(map(stopped, records.stopped)),
    )


def stopped(record: Mapping[str, Any]) -> str:
    """Return in words where pruning could not go on, and why."""
    return f"network {record['network']}, {record['method']}, step {record['step']}: {record['stopped']}"


def _row(method: str, records: Sequence[Mapping[str, Any]]) -> Row:
    errors = [error(record["retrained"]["test"]) for record in records]
    return Row(
        method=method,
        target=records[0]["target"],
        networks=len(records),
        params_removed=_mean(record["params_removed"] for record in records),
        macs_removed=_mean(record["macs_removed"] for record in records),
        error=_mean(errors),
        spread=_spread(errors),
        validation=_mean(error(record["retrained"]["validation"]) for record in records),
        pruned_error=_mean(error(record["pruned"]["test"]) for record in records),
    )


def error(figures: Mapping[str, Any]) -> float:
    """Return the percentage of wrong answers, or the loss where there are no classes."""
    top1, loss = (figures.get(key) for key in ("top1", "loss"))
    if top1 is None:
        return math.nan if loss is None else float(loss)
    return 100 * (1 - float(top1))


def _spread(values: Sequence[float]) -> float:
    """Return the standard deviation; 0 for a single value."""
    if not all(map(math.isfinite, values)):
        return math.nan
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


def as_text(found: Findings) -> Group:
    """Return everything for a terminal of 80 columns."""
    networks = f"{found.networks} network{'s' * (found.networks > 1)}"
    head = f"{found.name}: {networks}, unpruned test error {found.original:.2f}{found.unit}"
    parts: list[Any] = [Text(head, "bold"), "", _table(found)]
    points = " points" if found.unit else ""
    for method in found.methods:
        if best := found.commensurate(method):
            within = f"within {found.tolerance:.2g}{points} of the unpruned validation error"
            which = f"smallest network {within}" if found.is_near(best) else f"no network {within}, nearest"
            parts.append(
                f"{method}, {which}: PR {best.params_removed:.1%}, FR {best.macs_removed:.1%}, test error "
                f"{_change(best.error - found.original, points)}"
            )
    if found.rows:
        parts += ["", curve(found)]
    parts += [Text(f"stopped: {text}", "yellow") for text in found.stopped]
    return Group(*parts)


def _change(change: float, points: str) -> str:
    if round(change, 2) == 0:
        return "as unpruned"
    return f"{abs(change):.2f}{points} {'higher' if change > 0 else 'lower'} than unpruned"


def _table(found: Findings) -> Table:
    table = tables.table("method", "PR", "FR", "pruned", "retrained", "change", "n")
    for row in found.rows:
        spread = f" ±{row.spread:.2f}" if row.networks > 1 else ""
        table.add_row(
            row.method,
            f"{row.params_removed:.1%}",
            f"{row.macs_removed:.1%}",
            f"{row.pruned_error:.2f}{found.unit}",
            f"{row.error:.2f}{found.unit}{spread}",
            f"{row.error - found.original:+.2f}",
            str(row.networks),
        )
    table.caption = "PR, FR: parameters and MACs removed. Test error before and after retraining."
    table.caption_justify = "left"
    return table


def curve(found: Findings, width: int = 60, height: int = 12) -> Text:
    """Return test error after retraining over the parameters removed, drawn with a mark for each method."""
    marks = {method: MARKS[i % len(MARKS)] for i, method in enumerate(found.methods)}
    errors = [found.original, *(row.error for row in found.rows)]
    low, high = min(errors), max(errors)
    high = high if high > low else low + 1

    def line(error: float) -> int:
        return round((high - error) / (high - low) * (height - 1))

    grid = [[" "] * width for _ in range(height)]
    grid[line(found.original)] = [UNPRUNED] * width
    for row in found.rows:
        y, x = line(row.error), min(width - 1, int(row.params_removed * width))
        grid[y][x] = marks[row.method] if grid[y][x] in (" ", UNPRUNED, marks[row.method]) else SEVERAL
    lines = []
    for number, cells in enumerate(grid):
        level = high - (high - low) * number / (height - 1)
        lines.append(f"{level:8.2f}{found.unit or ' '} |{''.join(cells)}".rstrip())
    lines.append(f"{'':9} +{'-' * width}")
    lines.append(f"{'':11}0%{'parameters removed':^{width - 6}}100%")
    legend = [f"{mark} {name}" for name, mark in marks.items()] + [f"{UNPRUNED} unpruned"]
    legend += [f"{SEVERAL} several methods"] if any(SEVERAL in cells for cells in grid) else []
    return Text("\n".join([*lines, f"{'':11}{'   '.join(legend)}"]))
