"""Run what a table or figure of the paper needs, resume what is not finished, and render the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from secateur import rows as forms
from secateur.errors import SecateurError, UsageError
from secateur.experiments import recipe as recipes
from secateur.experiments.cascade import Parts
from secateur.experiments.sweep import Engine, prepare, sweep
from secateur.report import figures
from secateur.report.charts import Chart
from secateur.report.latency import measure_latency
from secateur.report.records import read_records
from secateur.reproduction import allocation, render
from secateur.reproduction.estimate import Task, allocation_task, tasks
from secateur.reproduction.items import Item, Run
from secateur.reproduction.points import Results, results
from secateur.reproduction.stored import read_run, restore
from secateur.storage.files import read_json, write_atomic, write_json

Size = Literal["full", "short", "quick"]
FORMATS = ("pdf", "svg", "png")
POINTS = ("original", "change", "sd", "PR", "FR", "top-5 change", "PR - paper", "before retraining", "after retraining")


@dataclass(frozen=True)
class Rendered:
    """The results of an item: rows of a table, charts, and what is missing, in words."""

    item: Item
    rows: list[dict[str, Any]]
    charts: list[Chart] = field(default_factory=list)
    missing: tuple[str, ...] = ()

    @property
    def formats(self) -> dict[str, Callable[[Any], str]]:
        """How percentages and points are written: with two digits, so that they can be compared with the paper's."""
        loss = any(row.get("original") is not None and row["original"] < 0.05 for row in self.rows)
        headings = [key for row in self.rows for key in row if key in POINTS or key.startswith("paper: ")]
        return {key: _number if loss and key not in ("PR", "FR") else _points for key in headings}

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        about = {"name": self.item.name, "title": self.item.title, "paper": self.item.paper, "note": self.item.note}
        return about | {"rows": self.rows, "missing": list(self.missing)}

    def markdown(self) -> str:
        """Return the table with title, note and what is missing."""
        parts = [
            f"# {self.item.title} ({self.item.paper})",
            forms.markdown(self.rows, formats=self.formats) or "There are no results yet.",
        ]
        parts += [self.item.note] if self.item.note else []
        parts += [f"Missing: {text}." for text in self.missing]
        return "\n\n".join(parts) + "\n"

    def write(self, folder: Path) -> list[Path]:
        """Write the table as Markdown, CSV, LaTeX and JSON, and each chart as PDF, SVG and PNG."""
        folder.mkdir(parents=True, exist_ok=True)
        name = self.item.name
        about = f"{self.item.title} ({self.item.paper})."
        latex = forms.latex(self.rows, formats=self.formats, caption=about, label=f"tab:{name}")
        texts = {"md": self.markdown(), "csv": forms.csv_text(self.rows), "tex": latex + "\n"}
        written = []
        for form, text in texts.items():
            written.append(folder / f"{name}.{form}")
            write_atomic(written[-1], text)
        written.append(folder / f"{name}.json")
        write_json(written[-1], self.as_dict())
        for chart in self.charts:
            drawn = figures.draw(chart)
            for form in FORMATS:
                written.append(folder / f"{chart.name}.{form}")
                write_atomic(written[-1], figures.as_bytes(drawn, form))
        return written


def _points(value: float) -> str:
    return f"{value:.2f}"


def _number(value: float) -> str:
    return f"{value:.4g}"


def chosen(item: Item, size: Size) -> list[tuple[Run, str]]:
    """Return the runs of an item, each with the recipe of this size; those without one are left out."""
    if item.kind == "settings":
        return []
    names = {
        "full": lambda run: run.recipe,
        "short": lambda run: run.short or run.recipe,
        "quick": lambda run: run.quick,
    }
    return [(run, name) for run in item.runs if (name := names[size](run))]


def plan(item: Item, size: Size, runs: Path, data_root: Path | None = None) -> list[Task]:
    """Return what is still to run, with estimated times on this machine.

    >>> plan(read("table-lenet"), "quick", Path("runs"))
    """
    if item.kind == "allocation":
        left = [name for _, name in chosen(item, size) if not _allocated(runs, name)]
        return [allocation_task(recipes.read(name), item.methods, runs / name, data_root) for name in left]
    return [task for _, name in chosen(item, size) for task in tasks(recipes.read(name), runs / name, data_root)]


def take_stored(item: Item, size: Size, runs: Path, stored: Path) -> int:
    """Copy stored results of an item into the folder of the runs; return the number of records.

    >>> take_stored(read("table-lenet"), "full", Path("runs"), Path("results/reproduction"))
    """
    total = 0
    for _, name in chosen(item, size):
        recipe = recipes.read(name)
        written = restore(stored, recipe, runs / name)
        file, own = stored / f"{name}-{allocation.FILE}", runs / name / allocation.FILE
        if item.kind == "allocation" and file.is_file() and not own.is_file():
            own.parent.mkdir(parents=True, exist_ok=True)
            write_json(own, read_json(file))
            written += 1
        if written:
            prepare(recipe, runs / name, resume=True)
        total += written
    return total


def run(
    item: Item,
    size: Size,
    runs: Path,
    *,
    engine: Engine = "local",
    jobs: int = 1,
    address: str | None = None,
    data_root: Path | None = None,
    progress: bool = False,
    log: Callable[[str], None] = lambda text: None,
) -> None:
    """Run or resume every run of an item; one that lacks data or weights is left out, unless all do."""
    if not chosen(item, size) and item.kind != "settings":
        raise UsageError(f"{item.name} has no {size} version", remedy="leave --quick out")
    failures = []
    for _, name in chosen(item, size):
        recipe = recipes.read(name)
        log(f"{name}: {recipe.differs or recipe.about}")
        try:
            Parts.of(recipe, data_root)
        except SecateurError as error:
            failures.append(error)
            log(f"{name} is left out: {error}")
            continue
        if item.kind == "allocation":
            allocation.measure(recipe, item.methods, runs / name, data_root, progress=progress)
            continue
        sweep(
            recipe,
            runs / name,
            engine=engine,
            resume=True,
            jobs=jobs,
            address=address,
            data_root=data_root,
            progress=progress,
            done=lambda task, name=name: log(f"{name}: {task}"),  # type: ignore[misc]
        )
        if item.timed:
            records = read_records(runs / name)
            there = [one for one in records.steps if (records.folder / f"{one['path']}.safetensors").is_file()]
            measure_latency(replace(records, steps=tuple(there)), progress=progress)
    if failures and len(failures) == len(chosen(item, size)):
        raise failures[0]


def rendered(item: Item, size: Size, runs: Path) -> Rendered:
    """Return an item from the results that are there.

    The full size also shows results of a shortened recipe where the full one has none; each row names its protocol.
    """
    if item.kind == "settings":
        return Rendered(item, render.settings_table([(run.label, recipes.read(run.recipe)) for run in item.runs]))
    if item.kind == "allocation":
        return _allocation(item, size, runs)
    found, missing = list[Results](), list[str]()
    for one in item.runs:
        result = _best(one, size, runs)
        if result is None:
            missing.append(f"{one.label}: no results of {_name(one, size) or f'a {size} recipe'}")
            continue
        found.append(result)
        missing += [f"{one.label}: {text}" for text in result.missing]
    if item.kind == "table":
        return Rendered(item, render.table(item, found), missing=tuple(missing))
    return Rendered(item, render.points_table(item, found), render.curves(item, found), tuple(missing))


def _name(one: Run, size: Size) -> str | None:
    return {"full": one.recipe, "short": one.short or one.recipe, "quick": one.quick}[size]


def _best(one: Run, size: Size, runs: Path) -> Results | None:
    """Return the results of the recipe of this size; of the full size else of the shortened one."""
    names = [_name(one, size), *([one.short] if size == "full" else [])]
    for name in filter(None, names):
        records = read_run(runs, name)
        if records is not None and records.originals and records.steps:
            return results(one.label, records)
    return None


def _allocated(runs: Path, name: str) -> Mapping[str, Any] | None:
    for path in (runs / name / allocation.FILE, runs / f"{name}-{allocation.FILE}"):
        if path.is_file():
            found: Mapping[str, Any] = read_json(path)
            return found
    return None


def _allocation(item: Item, size: Size, runs: Path) -> Rendered:
    rows, charts, missing = list[dict[str, Any]](), list[Chart](), list[str]()
    for one, name in chosen(item, size):
        found = _allocated(runs, name)
        if found is None:
            missing.append(f"{one.label}: no results of {name}")
            continue
        label = one.label if size != "quick" else name
        rows += [{"network": label, **row} for row in allocation.table(found)]
        charts += allocation.charts(item.name, label, found)
    return Rendered(item, rows, charts, tuple(missing))
