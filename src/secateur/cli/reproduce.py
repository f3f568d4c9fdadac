"""`secateur reproduce`: the tables and figures of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from secateur import tables
from secateur.cli.options import OUTPUT, RUN, count, option
from secateur.cli.screen import TableScreen
from secateur.errors import UsageError
from secateur.experiments.sweep import Engine
from secateur.reproduction import items
from secateur.reproduction import reproduce as work
from secateur.reproduction.estimate import in_words

ALL = "all"
GROUPED = {"table": ("network",), "curves": ("network",), "allocation": ("network", "method")}  # a table for each
SHOWN = {  # the columns that a terminal of 80 characters has room for
    "table": ("method", "row", "change", "PR", "FR", "paper: PR"),
    "curves": ("method", "PR", "before retraining", "after retraining", "ms, batch 1"),
    "allocation": ("group", "before", "after", "sensitivity mass", "a-priori eps", "certified eps"),
}
HEADINGS = {"paper: PR": "paper PR", "before retraining": "as cut", "after retraining": "retrained"}
LONG = 7 * 86400  # seconds of a plan that names the smaller sizes
SETTINGS = ("LeNet-300-100", "LeNet-5", "VGG16", "ResNet20")


def reproduce(
    *,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="A table or figure, or all; without it, the list.", show_default=False),
    ] = None,
    quick: Annotated[
        bool, option(RUN, "", "Miniatures that end in minutes and show that everything runs.", "--quick")
    ] = False,
    short: Annotated[bool, option(RUN, "", "Shortened recipes, where there are any.", "--short")] = False,
    plan: Annotated[
        bool, option(RUN, "", "Print what is to run and its estimated time; run nothing.", "--plan")
    ] = False,
    render: Annotated[bool, option(RUN, "", "Run nothing; show the results that are there.", "--render")] = False,
    runs: Annotated[Path, option(RUN, "DIR", "Folder of the runs, or of their stored results.")] = Path("runs"),
    stored: Annotated[
        Path | None, option(RUN, "DIR", "Stored results, which are not run again: results/reproduction.", "--from")
    ] = None,
    data: Annotated[Path | None, option(RUN, "DIR", "Folder of the data sets; by default SECATEUR_DATA.")] = None,
    engine: Annotated[Engine, option(RUN, "KIND", "local: processes of this machine; ray: a Ray cluster.")] = "local",
    address: Annotated[str | None, option(RUN, "ADDRESS", "Address of a Ray cluster.")] = None,
    jobs: Annotated[int, count(RUN, "Processes that run at the same time and share the cores.")] = 1,
    out: Annotated[
        Path | None, option(OUTPUT, "DIR", "Folder for the table and figure files.", show_default="RUNS/reproduction")
    ] = None,
    screen: TableScreen,
) -> None:
    """Reproduce a table or figure of the paper: run or resume what is missing, then render it."""
    if quick and short:
        raise UsageError("--quick and --short are two sizes", remedy="choose one of them")
    size: work.Size = "quick" if quick else "short" if short else "full"
    if name is None:
        return _list(screen)
    chosen = [items.read(one) for one in (items.names() if name == ALL else [name])]
    if name == ALL and quick:
        chosen = [item for item in chosen if item.kind == "settings" or work.chosen(item, size)]
    if stored:
        for item in chosen:
            screen.log(f"{item.name}: {work.take_stored(item, size, runs, stored)} records from {stored}")
    if plan:
        return _plan(chosen, size, runs, data, screen)
    done = []
    for item in chosen:
        if not render:
            work.run(
                item,
                size,
                runs,
                engine=engine,
                jobs=jobs,
                address=address,
                data_root=data,
                progress=screen.live,
                log=screen.log,
            )
        done.append(work.rendered(item, size, runs))
    folder = out or runs / "reproduction"
    files = [path for one in done for path in one.write(folder)]
    screen.show_table(
        {"items": [one.as_dict() for one in done], "files": [str(path) for path in files]},
        [{"item": one.item.name, **row} for one in done for row in one.rows],
        *(part for one in done for part in _page(one)),
        Text(f"Written: {len(files)} files in {folder}"),
    )


def _list(screen: TableScreen) -> None:
    found = [items.read(name) for name in items.names()]
    rows = [{"name": item.name, "paper": item.paper, "title": item.title} for item in found]
    lines = [Text(f"{item.name:25}{item.paper}\n  {item.title}") for item in found]
    screen.show_table({"items": rows}, rows, *lines)


def _plan(chosen: list[items.Item], size: work.Size, runs: Path, data: Path | None, screen: TableScreen) -> None:
    found = [(item.name, task) for item in chosen for task in work.plan(item, size, runs, data)]
    rows = [
        {
            "item": name,
            "recipe": task.recipe,
            "network": task.network,
            "method": task.method or "training",
            "results": task.left,
            "seconds": None if task.seconds is None else round(task.seconds),
        }
        for name, task in found
    ]
    table = tables.table("item", "recipe", "network", "method", "results", "time")
    seen = set[tuple[object, ...]]()
    total = 0.0
    for name, task in found:
        table.add_row(
            name, task.recipe, str(task.network), task.method or "training", str(task.left), in_words(task.seconds)
        )
        key = (task.recipe, task.network, task.method)
        total += (task.seconds or 0.0) if key not in seen else 0.0
        seen.add(key)
    unknown = sum(task.seconds is None for _, task in found)
    rest = f"; {unknown} of unknown time" if unknown else ""
    sentence = f"About {in_words(total)} with one process on this machine{rest}." if rows else "Nothing is left to run."
    if total > LONG and size == "full":
        sentence += " Shortened recipes: --short; miniatures that end in minutes: --quick."
    screen.show_table({"tasks": rows, "seconds": total}, rows, table, "", Text(sentence))


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _page(one: work.Rendered) -> list[object]:
    """Return the main columns of a table for a terminal, a part for each network; the files have all."""
    parts: list[object] = [Text(f"{one.item.title} ({one.item.paper})", "bold"), ""]
    if one.item.kind == "settings":
        made = tables.wrapped("setting", *SETTINGS)
        for row in one.rows:
            made.add_row(row["setting"], *(row[name] for name in SETTINGS))
        rest = len(one.item.runs) - len(SETTINGS)
        return [*parts, made, "", Text(f"The files have {rest} more networks."), ""]
    for head, rows in _grouped(one).items():
        headings = [key for key in SHOWN[one.item.kind] if any(row.get(key) is not None for row in rows)]
        if one.item.stage == ("pruned",):
            headings = [key for key in headings if key != "after retraining"]
        made = tables.table(*(HEADINGS.get(key, key) for key in headings))
        for row in rows:
            made.add_row(*("-" if row.get(key) is None else _cell(row[key]) for key in headings))
        parts += [Text(head), made, ""]
    if one.item.kind == "curves" and one.rows:
        percents = any(row["original"] >= 0.05 for row in one.rows)
        parts += [Text("Test errors in percent." if percents else "Test losses.", "dim"), ""]
    return [*parts, *(Text(f"Missing: {text}", "yellow") for text in one.missing), ""]


def _grouped(one: work.Rendered) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in one.rows:
        found.setdefault(", ".join(str(row[key]) for key in GROUPED[one.item.kind]), []).append(row)
    return found
