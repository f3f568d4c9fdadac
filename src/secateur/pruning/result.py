"""The result of pruning, and how it is shown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Group as Stack
from rich.table import Table
from rich.text import Text
from torch import nn

from secateur import tables
from secateur.channels.graph import ChannelGraph
from secateur.costs.cost import Cost
from secateur.costs.timing import Latency
from secateur.deprecation import renamed_fields
from secateur.methods.base import GroupRow, Method
from secateur.profiling.table import LatencyTable
from secateur.pruning.agreement import WARNINGS, Agreement
from secateur.pruning.settings import PruneSettings
from secateur.refit.repair import Repair
from secateur.report import figures
from secateur.report.blocks import Result
from secateur.report.page import write_page
from secateur.report.pruned import pruned
from secateur.rows import frame, html
from secateur.surgery.plan import Plan
from secateur.tables import ROWS, magnitude, number, percent

COLUMNS = {
    "mass": "sum of the sensitivities.",
    "eps": "relative error in each layer that sampling this many channels guarantees.",
    "dropped": "sum of the removed sensitivities, which bounds the error of derand; from 1 on it guarantees nothing.",
    "divergence": "estimated output divergence if this group alone were cut and its consumers refitted.",
}


@renamed_fields(points="samples", sensitivities="scores")
@dataclass(frozen=True)
class Pruned:
    """The smaller network, its plan, and all figures about it. `print(res.summary())` shows them.

    Attributes:
        model: the smaller network.
        plan: which channels it keeps.
        verification: largest relative difference between the cut and the masked network.
        before, after: parameters and MACs of the original and of the smaller network.
        rows: for each group its size before and after, and the figures of the method.
        level: where the allocation stopped; for pfp the relative error that the budget leaves room for.
        samples: number of calibration samples.
        method, allocation: as resolved from the settings.
        repair: the report of the repair, None without one.
        scores: the score of each unit of each group by the method, before any cut.
        fingerprints: hashes of the calibration samples, so that `certify` can refuse them; of a network that was pruned
            before, also of those samples.
        notes: warnings and remarks.
        agreement: what to expect on samples that pruning has not used; None if it was not measured.
        graph: the channel groups of the original.
        settings, budget: as asked for.
        profile: the time of each stage; empty if it was not measured. Saved files do not have it.
    """

    model: nn.Module
    plan: Plan
    verification: float
    before: Cost
    after: Cost
    rows: tuple[GroupRow, ...]
    level: float
    samples: int
    method: Method
    allocation: str
    repair: Repair | None
    scores: dict[str, list[float]]
    fingerprints: str
    notes: tuple[str, ...]
    agreement: Agreement | None = None
    graph: ChannelGraph | None = None
    settings: PruneSettings | None = None
    budget: Mapping[str, object] = field(default_factory=dict)
    profile: tuple[dict[str, Any], ...] = field(default=(), repr=False)

    @property
    def info(self) -> dict[str, Any]:
        """Everything but the tensors, as plain data; saved files carry it."""
        return {
            "method": self.method.name,
            **self.method.settings(),
            "allocation": self.allocation,
            "repair": None if self.repair is None else _json(asdict(self.repair)),
            "agreement": None
            if self.agreement is None
            else _json(asdict(self.agreement) | {"share": self.agreement.share}),
            "samples": self.samples,
            "level": _json(self.level),
            "verification": self.verification,
            "before": {"params": self.before.params, "macs": self.before.macs},
            "after": {"params": self.after.params, "macs": self.after.macs},
            "groups": [_json(asdict(row)) for row in self.rows],
            "fingerprints": self.fingerprints,
            "notes": list(self.notes),
            **self._asked(),
            **({} if self.graph is None else _topology(self.graph, self.plan)),
        }

    def _asked(self) -> dict[str, Any]:
        """Return the settings and the budget as plain data."""
        if self.settings is None:
            return {}
        settings = vars(self.settings) | {"method": self.method.name}
        return {
            "settings": _json({name: _plain(value) for name, value in settings.items()}),
            "budget": dict(self.budget),
        }

    def summary(self) -> str:
        """Return a page of plain text: each group, costs, verification, repair, agreement and notes."""
        return tables.plain(self.table(rows=None))

    def table(self, *, rows: int | None = ROWS, times: tuple[Latency, Latency] | None = None) -> Stack:
        """Return the same page for a rich terminal.

        Args:
            rows: of more groups than this, those that lost most channels are shown; None shows all.
            times: latency of the original and of the smaller network.
        """
        parts: list[Any] = [self.group_table(rows=rows), "", self.cost_table(times=times), "", Text(self.verified())]
        if self.repair is not None:
            parts += ["", Text(repaired(self.repair))]
        if self.agreement is not None:
            parts += ["", Text(str(self.agreement))]
        for note in self.notes:
            parts += ["", Text(f"{'Warning' if note.startswith(WARNINGS) else 'Note'}: {note}")]
        return Stack(*parts)

    def group_table(self, *, rows: int | None = ROWS) -> Stack:
        """Return the table of groups with its legend."""
        shown = _most_cut(self.rows, rows)
        columns = [key for key in COLUMNS if any(not math.isnan(getattr(row, key)) for row in self.rows)]
        made = tables.table("group", "before", "after", *columns)
        for row in shown:
            cells = [_cell(key, getattr(row, key), row.after < row.before) for key in columns]
            made.add_row(Text(row.name), f"{row.before:,}", f"{row.after:,}", *cells)
        parts: list[Any] = [made]
        if hidden := len(self.rows) - len(shown):
            parts += ["", Text(f"{hidden} groups that lost fewer channels are not shown; --all lists them.", "dim")]
        if columns:
            parts += ["", Text(" ".join(f"{key}: {COLUMNS[key]}" for key in columns), "dim")]
        return Stack(*parts)

    def cost_table(self, *, times: tuple[Latency, Latency] | None = None) -> Table:
        """Return the costs before and after, with the parts removed: PR of the parameters, FR of the MACs."""
        made = tables.table("", "before", "after", "removed")
        for name, short, old, new in (
            ("parameters", "PR", self.before.params, self.after.params),
            ("MACs", "FR", self.before.macs, self.after.macs),
        ):
            made.add_row(name, magnitude(old), magnitude(new), f"{short} {_removed(old, new)}")
        if times:
            slow, fast = (one.median_ms for one in times)
            made.add_row("latency, median", f"{slow:.3g} ms", f"{fast:.3g} ms", _removed(slow, fast))
        return made

    def profile_table(self) -> Table:
        """Return the time of each stage."""
        made = tables.table("stage", "seconds", "part", "CPU seconds")
        total = sum(row["seconds"] for row in self.profile)
        for row in (
            *self.profile,
            {"stage": "all", "seconds": total, "cpu_seconds": _sum(self.profile, "cpu_seconds")},
        ):
            part = percent(row["seconds"] / total if total else 0.0)
            made.add_row(row["stage"], f"{row['seconds']:.1f}", part, f"{row['cpu_seconds']:.1f}")
        return made

    def report(self, path: str | Path, *, title: str | None = None, force: bool = False) -> Path:
        """Write a page to look at, one HTML file that works offline, and return its path.

        >>> res.report("page.html")

        Args:
            path: the file to write.
            title: of the page.
            force: overwrite an existing file.
        """
        return write_page(path, [self.result], title=title, force=force)

    def plot(self, chart: str = "groups", *, width: figures.Width = "column") -> Any:
        """Return a chart as a matplotlib Figure: the channels of every group before and after, or another one.

        Args:
            chart: `groups`, `saved:parameters`, `saved:MACs`, `figures`, `repair` or `scores:GROUP`.
            width: `"column"`, `"full"`, or inches.
        """
        return figures.figure(self, chart, width=width)

    def to_frame(self) -> Any:
        """Return the figures of every group as a pandas DataFrame."""
        return frame(asdict(row) for row in self.rows)

    @property
    def result(self) -> Result:
        """What the report page shows."""
        return pruned("pruned network", self.info | {"scores": self.scores})

    def _repr_html_(self) -> str:
        shown = [{key: value for key, value in asdict(row).items() if value == value} for row in self.rows]
        params, macs = (_removed(getattr(self.before, one), getattr(self.after, one)) for one in ("params", "macs"))
        agreement = f" {self.agreement}" if self.agreement is not None else ""
        return html(shown, caption=f"PR {params}, FR {macs}. {self.verified()}{agreement}")

    def verified(self) -> str:
        """Return what was verified, as a sentence."""
        if not self.plan.kept:
            return "No channel was removed: the original is within the budget."
        rescaled = " and the others rescaled" if any(self.plan.scales) else ""
        before = "" if self.repair is None else ", before the repair,"
        return (
            f"Verified: the cut network{before} equals the original with the removed channels zeroed{rescaled}, "
            f"to {self.verification:.0e} (relative)."
        )


def repaired(repair: Repair) -> str:
    """Return what the repair did, as a sentence.

    >>> repaired(res.repair)
    'Repaired: 20 of 20 layers refitted; output divergence 0.052, without repair 1.3, on samples that took part
    in the fits.'
    """
    changed = sum(layer.kept < layer.outputs for layer in repair.layers)
    norms = ", norm statistics re-estimated" if repair.norms else ""
    return (
        f"Repaired: {changed} of {len(repair.layers)} layers refitted{norms}; output divergence {repair.after:.2g}, "
        f"without repair {repair.before:.2g}, on samples that took part in the fits."
    )


def _most_cut(rows: Sequence[GroupRow], limit: int | None) -> list[GroupRow]:
    if limit is None or len(rows) <= limit:
        return list(rows)
    chosen = {row.name for row in sorted(rows, key=lambda row: row.after - row.before)[:limit]}
    return [row for row in rows if row.name in chosen]


def _cell(key: str, value: float, cut: bool) -> Text:
    if key == "mass":
        return Text(number(value))
    vacuous = key in ("eps", "dropped") and value >= 1
    return Text(number(value) if cut else "-", "yellow" if cut and vacuous else "")


def _sum(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(sum(row[key] for row in rows))


def _removed(old: float, new: float) -> str:
    return percent(1 - new / old if old else 0.0)


def _topology(graph: ChannelGraph, plan: Plan) -> dict[str, Any]:
    """Return the layers with their widths before and after, and the kept groups with the reasons, as plain data."""
    outputs = {slot.parameter: slot for group in graph.groups for slot in group.produces}
    layers: list[dict[str, Any]] = []
    for layer in graph.layers:
        slot, after = outputs.get(layer.parameter), layer.channels
        if slot in plan.kept:
            after = len(plan.kept[slot])
        elif layer.inputs and not layer.parameter:
            sources = [layers[source] for source in layer.inputs]
            before = sum(source["before"] for source in sources)
            after = round(layer.channels * sum(source["after"] for source in sources) / before) if before else after
        about = {"name": layer.name, "kind": layer.kind, "before": layer.channels, "after": after}
        layers.append(about | {"inputs": list(layer.inputs)})
    kept = [
        {"name": group.name, "channels": group.size, "reasons": [asdict(reason) for reason in group.reasons]}
        for group in graph.groups
        if not group.prunable
    ]
    return {"layers": layers, "kept": kept}


def _plain(value: Any) -> Any:
    if isinstance(value, LatencyTable):
        return str(value)
    return dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value


def _json(value: Any) -> Any:
    """Return a value that JSON can hold: NaN and infinity become null."""
    if isinstance(value, dict):
        return {key: _json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_json(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
