"""A sweep as an object: its rows, its figures, its page."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from secateur import rows, tables
from secateur.checks import known_keywords
from secateur.errors import UsageError
from secateur.report import figures
from secateur.report.blocks import Result
from secateur.report.page import write_page
from secateur.report.records import Records, read_records
from secateur.report.study import study
from secateur.report.sweep import Findings, as_text, findings


@dataclass(frozen=True)
class Sweep:
    """The results of a sweep, finished or not; `print(sweep)` shows them, notebooks show a table.

    Attributes:
        records: everything that the folder holds.
    """

    records: Records

    @cached_property
    def findings(self) -> Findings:
        """The means over the networks."""
        if not self.records.originals:
            raise UsageError(
                f"no network of the run in {self.records.folder} is trained yet", remedy="wait, or sweep with --resume"
            )
        return findings(self.records)

    @cached_property
    def result(self) -> Result:
        """What the page shows."""
        return study(self.records)

    def plot(self, x: str = "params", *, width: figures.Width = "column") -> Any:
        """Return accuracy or loss against the `params`, `macs` or `latency` that are kept, as a matplotlib Figure."""
        return figures.accuracy(self, x, width=width)

    def to_frame(self) -> Any:
        """Return every run as a row of a pandas DataFrame."""
        return rows.frame([_flat(one) for one in self.records.steps])

    def report(self, path: str | Path, *, title: str | None = None, force: bool = False) -> Path:
        """Write a page to look at, one HTML file that works offline, and return its path."""
        return write_page(path, [self.result], title=title, force=force)

    def __str__(self) -> str:
        return tables.plain(as_text(self.findings))

    def _repr_html_(self) -> str:
        return rows.html(map(vars, self.findings.rows), caption=f"{self.records.name}: means over the networks")


@known_keywords
def read_sweep(folder: str | Path) -> Sweep:
    """Return the results in the folder of a sweep.

    >>> sc.read_sweep("runs/lenet5-quick").plot("macs")
    """
    return Sweep(read_records(Path(folder)))


def _flat(record: Any, prefix: str = "") -> dict[str, Any]:
    """Return a nested record with names such as `retrained_test_top1`."""
    found: dict[str, Any] = {}
    for name, value in record.items():
        found |= _flat(value, f"{prefix}{name}_") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found
