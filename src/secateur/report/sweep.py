"""What a sweep found: a table, the commensurate network of each method, and a curve in text."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from secateur.errors import UsageError
from secateur.files import read_json

WITHIN = 0.5  # points of error that a commensurate network may lose
MARKS = "ox+*#@"


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
    """A run folder, read."""

    name: str
    unit: str  # "%" or "" for a loss
    original: float  # mean error on test data
    original_validation: float
    networks: int
    rows: tuple[Row, ...]
    stopped: tuple[str, ...]

    def commensurate(self, method: str) -> Row | None:
        """The smallest network whose validation error is near the original's; where none is, the nearest."""
        rows = [row for row in self.rows if row.method == method]
        near = [row for row in rows if row.validation <= self.original_validation + self.tolerance]
        if near:
            return max(near, key=lambda row: row.params_removed)
        return min(rows, key=lambda row: row.validation, default=None)

    @property
    def tolerance(self) -> float:
        return WITHIN if self.unit else 0.05 * self.original_validation

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for machines."""
        best = {method: self.commensurate(method) for method in dict.fromkeys(row.method for row in self.rows)}
        return {
            "recipe": self.name,
            "networks": self.networks,
            "original": {"error": self.original, "validation": self.original_validation},
            "rows": [vars(row) for row in self.rows],
            "commensurate": {method: vars(row) for method, row in best.items() if row},
            "stopped": list(self.stopped),
        }


def read_run(folder: Path) -> Findings:
    """Read the records of a run, finished or not.

    >>> print(as_text(read_run(Path("runs/lenet5-quick"))))
    """
    if not (folder / "recipe.json").is_file():
        raise UsageError(f"there is no run in {folder}", remedy="give the folder that a sweep wrote")
    recipe = read_json(folder / "recipe.json")
    originals = [read_json(path) for path in sorted(folder.glob("network-*/original.json"))]
    if not originals:
        raise UsageError(f"no network of the run in {folder} is trained yet", remedy="wait, or sweep with --resume")
    records = [read_json(path) for path in sorted(folder.glob("network-*/*/step-*.json"))]
    steps: dict[tuple[str, int], list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        if "stopped" not in record:
            steps[record["method"], record["step"]].append(record)
    percent = originals[0]["test"]["top1"] is not None
    return Findings(
        name=recipe["name"],
        unit="%" if percent else "",
        original=_mean(_error(one["test"]) for one in originals),
        original_validation=_mean(_error(one["validation"]) for one in originals),
        networks=len(originals),
        rows=tuple(_row(method, several) for (method, _), several in sorted(steps.items())),
        stopped=tuple(_stop(record) for record in records if "stopped" in record),
    )


def _stop(record: Mapping[str, Any]) -> str:
    return f"network {record['network']}, {record['method']}, step {record['step']}: {record['stopped']}"


def _row(method: str, records: Sequence[Mapping[str, Any]]) -> Row:
    errors = [_error(record["retrained"]["test"]) for record in records]
    return Row(
        method=method,
        target=records[0]["target"],
        networks=len(records),
        params_removed=_mean(record["params_removed"] for record in records),
        macs_removed=_mean(record["macs_removed"] for record in records),
        error=_mean(errors),
        spread=statistics.stdev(errors) if len(errors) > 1 else 0.0,
        validation=_mean(_error(record["retrained"]["validation"]) for record in records),
        pruned_error=_mean(_error(record["pruned"]["test"]) for record in records),
    )


def _error(figures: Mapping[str, Any]) -> float:
    """Percent of wrong answers, or the loss where there are no classes."""
    return float(figures["loss"]) if figures["top1"] is None else 100 * (1 - float(figures["top1"]))


def _mean(values: Any) -> float:
    return statistics.fmean(values)


def as_text(found: Findings) -> Group:
    """Everything for the terminal, in 80 columns."""
    what = f"error {found.original:.2f}{found.unit}"
    head = f"{found.name}: {found.networks} network{'s' * (found.networks > 1)}, unpruned test {what}"
    parts: list[Any] = [Text(head, "bold"), "", _table(found)]
    for method in dict.fromkeys(row.method for row in found.rows):
        best = found.commensurate(method)
        if best:
            near = best.validation <= found.original_validation + found.tolerance
            label = "within" if near else "nearest to"
            change = best.error - found.original
            parts.append(
                f"{method}, {label} +{found.tolerance:.2g} of the unpruned validation error: "
                f"PR {best.params_removed:.1%}, FR {best.macs_removed:.1%}, test error {change:+.2f}"
            )
    if found.rows:
        parts += ["", curve(found)]
    parts += [Text(f"stopped: {text}", "yellow") for text in found.stopped]
    return Group(*parts)


def _table(found: Findings) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("method")
    for heading in ("PR", "FR", "pruned", "retrained", "change", "n"):
        table.add_column(heading, justify="right")
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
    """Test error after retraining over the parameters removed, drawn with letters."""
    methods = list(dict.fromkeys(row.method for row in found.rows))
    low = min([found.original, *(row.error for row in found.rows)])
    high = max([found.original, *(row.error for row in found.rows)])
    high = high if high > low else low + 1
    grid = [[" "] * width for _ in range(height)]
    line = _place(found.original, low, high, height)
    grid[height - 1 - line] = ["·"] * width  # the unpruned network
    for row in found.rows:
        x = min(width - 1, int(row.params_removed * width))
        y = _place(row.error, low, high, height)
        grid[height - 1 - y][x] = MARKS[methods.index(row.method) % len(MARKS)]
    lines = []
    for number, cells in enumerate(grid):
        level = high - (high - low) * number / (height - 1)
        lines.append(f"{level:8.2f}{found.unit or ' '} |{''.join(cells)}".rstrip())
    lines.append(f"{'':9} +{'-' * width}")
    lines.append(f"{'':11}0%{'parameters removed':^{width - 6}}100%")
    legend = "   ".join(f"{MARKS[i % len(MARKS)]} {name}" for i, name in enumerate(methods))
    lines.append(f"{'':11}{legend}   · unpruned")
    return Text("\n".join(lines))


def _place(value: float, low: float, high: float, height: int) -> int:
    return round((value - low) / (high - low) * (height - 1))
