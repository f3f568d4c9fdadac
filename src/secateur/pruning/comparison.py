"""The result of comparing methods, and how it is shown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group as Stack
from rich.table import Table
from rich.text import Text

from secateur import tables
from secateur.costs.cost import Cost
from secateur.deprecation import renamed_fields
from secateur.report import figures
from secateur.report.page import write_page
from secateur.rows import frame, html
from secateur.tables import magnitude, number, percent

LEGEND = {
    "accuracy": "accuracy: share of {evaluated:,} samples whose class has the highest score.",
    "divergence": "divergence: output divergence from the original on {evaluated:,} samples that no method used, lower "
    "is better; KL divergence for class scores, else the relative squared error.",
}


@renamed_fields(draw="repeat", figure="value", why="error")
@dataclass(frozen=True)
class Cell:
    """One method under one budget, on one calibration set. A failure has no figures, and an error."""

    method: str
    budget: str
    repeat: int
    params: int | None = None
    macs: int | None = None
    value: float | None = None  # accuracy or output divergence
    seconds: float | None = None  # for measuring, selecting, cutting, verifying, repairing; shared work counts in full
    error: str | None = None
    notes: tuple[str, ...] = ()


@renamed_fields(draws="repeats", figure="value", why="error")
@dataclass(frozen=True)
class Row:
    """One method under one budget: means over the finished repeats, and the lowest and highest value."""

    method: str
    budget: str
    repeats: int
    params: float | None
    macs: float | None
    value: float | None
    low: float | None
    high: float | None
    seconds: float | None
    error: str | None  # of the first repeat that failed

    @classmethod
    def of(cls, method: str, budget: str, cells: Sequence[Cell]) -> Row:
        """Return the means of some cells."""
        done = [cell for cell in cells if cell.value is not None]
        values = [cell.value for cell in done if cell.value is not None]

        def mean(name: str) -> float | None:
            return statistics.fmean(getattr(cell, name) for cell in done) if done else None

        return cls(
            method=method,
            budget=budget,
            repeats=len(done),
            params=mean("params"),
            macs=mean("macs"),
            value=mean("value"),
            low=min(values, default=None),
            high=max(values, default=None),
            seconds=mean("seconds"),
            error=next((cell.error for cell in cells if cell.error is not None), None),
        )


@renamed_fields(draws="repeats", points="samples", judged="evaluated")
@dataclass(frozen=True)
class Comparison:
    """The figures of `compare`. `print(found)` is a table; `found.rows` holds its rows, `found.info` all as plain data.

    Attributes:
        resource: what the budgets limit, `params` or `macs`.
        measure: the kind of value: `accuracy` or `divergence`.
        original: accuracy of the original, if that is the measure.
        evaluated: number of samples that the values come from.
        samples: number of calibration samples of each repeat.
    """

    resource: str
    budgets: tuple[str, ...]
    methods: tuple[str, ...]
    measure: str
    original: float | None
    evaluated: int
    samples: int
    repeats: int
    seed: int
    before: Cost
    cells: tuple[Cell, ...] = ()
    finished: bool = False
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[Row, ...]:
        """The methods under each budget, in the order asked for; those without any cell are left out."""
        pairs = [(method, budget) for budget in self.budgets for method in self.methods]
        cells = {pair: [cell for cell in self.cells if (cell.method, cell.budget) == pair] for pair in pairs}
        return tuple(Row.of(*pair, cells[pair]) for pair in pairs if cells[pair])

    def best_first(self, budget: str) -> list[Row]:
        """Return the rows of one budget, the best value first, failures last.

        >>> found.best_first("50%")[0].method
        'residual+repair'
        """
        sign = -1 if self.measure == "accuracy" else 1
        rows = [row for row in self.rows if row.budget == budget]
        return sorted(rows, key=lambda row: (row.value is None, sign * (row.value or 0.0)))

    @property
    def info(self) -> dict[str, Any]:
        """Everything as plain data."""
        known = asdict(self) | {"before": {"params": self.before.params, "macs": self.before.macs}}
        del known["cells"]
        rows = []
        for row in self.rows:
            cells = [asdict(cell) for cell in self.cells if (cell.method, cell.budget) == (row.method, row.budget)]
            each = [{key: value for key, value in one.items() if key not in ("method", "budget")} for one in cells]
            rows.append(asdict(row) | {"cells": each})
        return known | {"rows": rows}

    def __str__(self) -> str:
        return tables.plain(self.table())

    def _repr_html_(self) -> str:
        shown = [row for budget in self.budgets for row in self.best_first(budget)]
        written = {"value": self._value, "low": self._value, "high": self._value}
        return html((asdict(row) for row in shown), formats=written, caption=f"{self.headline()} {self._legend()}")

    def plot(self, x: str | None = None, *, width: figures.Width = "column") -> Any:
        """Return the value of every method against the `params` or `macs` kept, as a matplotlib Figure."""
        return figures.comparison(self, x or self.resource, width=width)

    def to_frame(self) -> Any:
        """Return every method under every budget as a row of a pandas DataFrame."""
        return frame(asdict(row) for row in self.rows)

    def report(self, path: str | Path, *, title: str | None = None, force: bool = False) -> Path:
        """Write a page to look at, one HTML file that works offline, and return its path."""
        return write_page(path, [figures.result_of(self)], title=title, force=force)

    def table(self) -> Stack:
        """Return the methods under each budget for a rich terminal, then failures and notes."""
        parts: list[Any] = [Text(self.headline()), "", self._row_table(), "", Text(self._legend(), "dim")]
        failed = [row for row in self.rows if row.error is not None]
        if failed:
            parts += ["", Text("Failed", "bold")]
            parts += [Text(f"{row.method} at {row.budget}{self._part_failed(row)}: {row.error}") for row in failed]
        if not self.finished:
            wanted = self.repeats * len(self.methods) * len(self.budgets)
            parts += ["", Text(f"Unfinished: {len(self.cells)} of {wanted} networks were evaluated.", "yellow")]
        return Stack(*parts, *tables.paragraphs("Note: ", self.notes))

    def headline(self) -> str:
        """Return the size and accuracy of the original, as a sentence.

        >>> found.headline()
        'The original has 431.1 k parameters and 2.293 M MACs; accuracy 99.05%.'
        """
        size = f"{magnitude(self.before.params)} parameters and {magnitude(self.before.macs)} MACs"
        accuracy = "" if self.original is None else f"; accuracy {percent(self.original, 2)}"
        return f"The original has {size}{accuracy}."

    def _row_table(self) -> Table:
        several = self.repeats > 1
        spread = ["low to high"] if several else []
        made = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
        made.add_column("budget", justify="right", no_wrap=True)
        made.add_column("method", overflow="fold")
        for heading in ("params", "MACs", self.measure, *spread, "seconds"):
            made.add_column(heading, justify="right", no_wrap=True)
        for budget in self.budgets:
            for place, row in enumerate(self.best_first(budget)):
                made.add_row(
                    Text("" if place else budget),
                    Text(row.method),
                    percent(_part(row.params, self.before.params)),
                    percent(_part(row.macs, self.before.macs)),
                    self._value(row.value),
                    *([self._spread(row)] if several else []),
                    "-" if row.seconds is None else f"{row.seconds:.2g}" if row.seconds < 10 else f"{row.seconds:,.0f}",
                )
            if budget != self.budgets[-1]:
                made.add_section()
        return made

    def _legend(self) -> str:
        spread = f" Means over {self.repeats} calibration sets; the lowest and the highest." if self.repeats > 1 else ""
        remains = {"params": "parameters", "macs": "MACs"}[self.resource]
        return (
            f"budget: {remains} that may remain. {LEGEND[self.measure].format(evaluated=self.evaluated)}{spread} "
            f"params, MACs: parts that remain. seconds: for measuring on {self.samples:,} samples, selecting, cutting, "
            "verifying and repairing, without tracing."
        )

    def _part_failed(self, row: Row) -> str:
        return f" (in {self.repeats - row.repeats} of {self.repeats} repeats)" if row.repeats else ""

    def _value(self, value: float | None) -> str:
        return percent(value, 2) if self.measure == "accuracy" else number(value)

    def _spread(self, row: Row) -> str:
        return f"{self._value(row.low).removesuffix('%')} to {self._value(row.high)}" if row.repeats else "-"


def _part(value: float | None, whole: float) -> float | None:
    return None if value is None else value / whole if whole else 0.0
