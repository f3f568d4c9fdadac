"""The page docs/reproduction.md, from stored results: ours beside the paper's, figures, claims, and what is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from secateur import rows as forms
from secateur.experiments import recipe as recipes
from secateur.report import figures
from secateur.report.charts import Chart
from secateur.reproduction import items
from secateur.reproduction.claims import UNTESTED, Find, checked
from secateur.reproduction.reproduce import Rendered, rendered
from secateur.reproduction.stored import read_run

FOLDER = "images/reproduction"  # of the figures, beside the page
HEAD = """# The paper, reproduced

Every table and figure of the paper, with our own runs beside the published values. Errors are in percent and changes in
percentage points, on test data; networks are selected on validation data. PR and FR are the parts of the parameters
and of the MACs that were removed, in percent. `residual` is the default method of this package: least residual
selection with repair.

```sh
secateur reproduce table-lenet --plan                                       # what is missing, and how long it takes
secateur reproduce table-lenet --runs runs --from results/reproduction      # run what is missing, write the table
python benchmarks/reproduction.py --runs runs                               # store the results, write this page
```

The records in `results/reproduction` hold every run with its protocol. With `--render --runs results/reproduction` the
command writes each table with all columns as Markdown, CSV and LaTeX, and each figure as PDF, SVG and PNG.
"""
Row = dict[str, Any]


def page(stored: Path, find: Find, quick: Row | None) -> str:
    """Return the page: the claims, tables and figures with results, published tables without, and what is missing.

    Args:
        stored: folder of the stored results.
        find: the results of the first of some recipes that has any.
        quick: the record of the quick set, if there is one.
    """
    every = [rendered(items.read(name), "full", stored) for name in _ordered()]
    parts = [HEAD, _claims(find)]
    parts += [_section(one) for one in every if _has_results(one)]
    parts += [_section(one) for one in every if one.item.kind == "table" and not _has_results(one)]
    parts += [
        "## What has been run\n",
        _progress(stored),
        "## The quick set\n",
        _quick(quick),
        "## Settings\n",
        SETTINGS,
    ]
    return "\n".join(parts).rstrip() + "\n"


SETTINGS = """`secateur reproduce table-settings` prints the hyper-parameters of all recipes from their YAML files, as
the paper has them in its Tables 3, 5 and 7.
"""


def draw(stored: Path, folder: Path) -> list[Path]:
    """Draw every figure with results into a folder; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in items.names():
        for chart in _charts(rendered(items.read(name), "full", stored)):
            path = folder / f"{chart.name}.svg"
            path.write_bytes(figures.as_bytes(figures.draw(chart, width="full"), "svg"))
            written.append(path)
    for path in set(folder.glob("*.svg")) - set(written):
        path.unlink()
    return written


def _ordered() -> list[str]:
    """Return the items in the order of the page: tables, then figures."""
    return sorted(items.names(), key=lambda name: (not name.startswith("table"), name != "table-lenet", name))


def _has_results(one: Rendered) -> bool:
    return one.item.kind != "settings" and any(row.get("PR") is not None or "group" in row for row in one.rows)


def _section(one: Rendered) -> str:
    body: Callable[[Rendered], Iterable[str]] = {"table": _table, "curves": _curves, "allocation": _allocation}[
        one.item.kind
    ]
    where = f"{one.item.paper[0].upper()}{one.item.paper[1:]}; `secateur reproduce {one.item.name}`."
    parts = [f"## {one.item.title}\n", f"{where}\n", *body(one), *([f"{one.item.note}\n"] if one.item.note else [])]
    own = dict.fromkeys(row["protocol"] for row in one.rows if row.get("PR") is not None or "group" in row)
    return "\n".join([*parts, *(f"- Protocol: {text}." for text in own), ""])


# --- tables


def _table(one: Rendered) -> Iterable[str]:
    """Yield ours and the paper's, a line each, with a column for every method; then the literature."""
    yield "PR / FR (change of the error); a dash stands for no run, or no published value.\n"
    known = [row for row in one.rows if row["row"] != "as published"]
    names = list(dict.fromkeys(row["method"] for row in known))
    lines = []
    for network, row in dict.fromkeys((row["network"], row["row"]) for row in known):
        cells = {each["method"]: each for each in known if (each["network"], each["row"]) == (network, row)}
        what = f"{network}, {row}" if len(one.item.rows) > 1 else network
        for label, text in (("here", _ours), ("paper", _theirs), ("PR here - paper", _difference)):
            values = {name: text(cells[name]) if name in cells else None for name in names}
            if any(value is not None for value in values.values()):
                lines.append({"": f"{what}: {label}", **values})
    yield forms.markdown(lines) + "\n"
    others = [row for row in one.rows if row["row"] == "as published"]
    for network in dict.fromkeys(row["network"] for row in others):
        texts = (f"{row['method']} {_theirs(row)}" for row in others if row["network"] == network)
        yield f"- {network}, others as the paper cites them: {'; '.join(texts)}."
    if others:
        yield ""


def _ours(row: Row) -> str | None:
    if row.get("PR") is None:
        return None
    spread = f" ± {row['sd']:.2f}" if row["networks"] > 1 else ""
    return f"{row['PR']:.2f} / {row['FR']:.2f} ({row['change']:+.2f}{spread})"


def _theirs(row: Row) -> str | None:
    values = [row.get(f"paper: {name}") for name in ("PR", "FR", "change")]
    if all(value is None for value in values):
        return None
    pr, fr, change = ("-" if value is None else value for value in values)
    return f"{pr} / {fr}" + (f" ({change:+.2f})" if isinstance(change, float) else "")


def _difference(row: Row) -> str | None:
    value = row.get("PR - paper")
    return None if value is None else f"{value:+.2f}"


# --- figures


def _charts(one: Rendered) -> list[Chart]:
    """Return the charts that show something: at least two points of a method."""
    return [
        chart for chart in one.charts if any(len(series.x) > 1 for series in chart.series if series.kind != "level")
    ]


def _curves(one: Rendered) -> Iterable[str]:
    for network in dict.fromkeys(row["network"] for row in one.rows):
        own = [row for row in one.rows if row["network"] == network]
        key = f"{one.item.name}-{network.lower().replace(' ', '-')}-"
        yield from (_picture(chart) for chart in _charts(one) if chart.name.startswith(key))
        both = len(one.item.stage) > 1
        stages = ("before retraining", "after retraining")
        shown = stages if both else stages[:1] if one.item.stage == ("pruned",) else stages[1:]
        percent = any(row["original"] >= 0.05 for row in own)
        for stage in shown:
            what = "Test error in percent" if percent else "Test loss"
            yield f"{network}, {stage}. {what}; the original's is {_figure(own[0]['original'], percent)}.\n"
            yield _pivot(own, lambda row: _figure(row[stage], percent)) + "\n"  # noqa: B023
        if any(row.get("ms, batch 1") is not None for row in own):
            yield f"{network}: milliseconds of a forward pass at batch 1, one thread (part of the original's time).\n"
            yield _pivot(own, _time) + "\n"


def _pivot(rows: Sequence[Row], text: Callable[[Row], str | None]) -> str:
    """Return a table with a line for each target and a column for each method."""
    names = list(dict.fromkeys(row["method"] for row in rows))
    cells = {(row["target"], row["method"]): text(row) for row in rows}
    targets = sorted({row["target"] for row in rows})
    return forms.markdown(
        {"target PR": f"{100 * target:.1f}", **{name: cells.get((target, name)) for name in names}}
        for target in targets
    )


def _figure(value: float, percent: bool) -> str:
    return f"{value:.2f}" if percent else f"{value:.5f}"


def _time(row: Row) -> str | None:
    return None if row.get("ms, batch 1") is None else f"{row['ms, batch 1']:.2f} ({row['latency kept']:.0%})"


def _allocation(one: Rendered) -> Iterable[str]:
    yield from (_picture(chart) for chart in _charts(one))
    names = list(dict.fromkeys(row["method"] for row in one.rows))
    groups = dict.fromkeys((row["network"], row["group"], row["before"]) for row in one.rows)
    lines = []
    for network, group, before in groups:
        own = {row["method"]: row for row in one.rows if (row["network"], row["group"]) == (network, group)}
        line = {"network": network, "group": group, "units": before}
        line |= {f"{name}: kept": own[name]["after"] for name in names}
        line |= {f"{name}: {key}": own[name][key] for name in names for key in ("a-priori eps", "certified eps")}
        lines.append({key: value for key, value in line.items() if key != "network"})
    keys = [key for key in forms.headings(lines) if any(line[key] is not None for line in lines)]
    yield forms.markdown([{key: line[key] for key in keys} for line in lines]) + "\n"


def _picture(chart: Chart) -> str:
    return f"![{chart.title}]({FOLDER}/{chart.name}.svg)\n"


# --- the rest


def _claims(find: Find) -> str:
    rows = checked(find)
    tested = [row for row in rows if row["verdict"] != UNTESTED]
    parts = ["## The claims of the text\n", forms.markdown(tested) + "\n"] if tested else []
    left = [row["claim"] for row in rows if row["verdict"] == UNTESTED]
    if left:
        parts += ["Not tested yet:\n", *(f"- {text}" for text in left), ""]
    return "\n".join(parts)


def _progress(stored: Path) -> str:
    """Return a table of the recipes: how many results each has, of how many, and what needs them."""
    uses: dict[str, tuple[str, list[str]]] = {}
    for name in _ordered():
        item = items.read(name)
        for run in item.runs if item.kind != "settings" else ():
            for recipe in filter(None, (run.recipe, run.short)):
                uses.setdefault(recipe, (run.label, []))[1].append(name)
    lines = []
    for name, (label, needed) in uses.items():
        recipe, records = recipes.read(name), read_run(stored, name)
        steps = [] if records is None else [one for one in records.steps if one["method"] in recipe.methods]
        of = recipe.networks * len(recipe.methods) * len(recipe.ratios)
        done = {one: f"{sum(step['method'] == one for step in steps)}" for one in recipe.methods}
        by = ", ".join(f"{one} {count}" for one, count in done.items() if count != "0")
        lines.append({"network": label, "recipe": name, "results": f"{len(steps)} of {of}", "by method": by or None,
                      "needed by": ", ".join(needed)})  # fmt: skip
    return forms.markdown(sorted(lines, key=lambda line: line["by method"] is None)) + "\n"


def _quick(record: Row | None) -> str:
    if record is None:
        return "`make reproduce` runs miniatures of all tables and figures.\n"
    minutes = f"{record['cpu_seconds'] / 60:.0f} minutes"
    return (
        "`make reproduce` runs miniatures of all tables and figures. They show that everything works, and are no "
        f"results. It takes {minutes} of processor time on one core (`benchmarks/reproduce_quick.py`).\n"
    )
