"""Commands for experiments: `secateur train`, `secateur sweep`, `secateur report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from secateur import recipe as recipes
from secateur.cli.shared import AsJson, Quiet, interruptible, plain_errors
from secateur.loop import Parts, train_original
from secateur.report import sweep as findings
from secateur.sweep import Engine, prepare
from secateur.sweep import sweep as run_sweep

RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A recipe's name, or a YAML file of your own.", show_default=False)
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, like train.epochs=3; may be repeated."),
]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="The run's folder; runs/RECIPE if not given.")]
DataRoot = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Where the data sets lie; SECATEUR_DATA if not given.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a run that is there.")]


def train(
    recipe: RecipeName,
    network: Annotated[int, typer.Option(metavar="N", help="Which of the recipe's networks: 0 is the first.")] = 0,
    out: Out = None,
    data: DataRoot = None,
    resume: Resume = False,
    set: Set = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train one network of RECIPE, unpruned; a later sweep with --resume goes on from it."""
    with plain_errors(), interruptible():
        chosen = recipes.read(recipe, set or ())
        folder = (out or Path("runs") / chosen.name).resolve()
        prepare(chosen, folder, resume)
        parts = Parts.of(chosen, data)
        console = Console(stderr=True, quiet=quiet)
        train_original(chosen, network, folder, parts, progress=console.is_terminal and not quiet)
        figures = json.loads((folder / f"network-{network}" / "original.json").read_text())
        if as_json:
            typer.echo(json.dumps({"recipe": chosen.name, "network": network, "out": str(folder)} | figures, indent=2))
            return
        top1, loss = figures["test"]["top1"], figures["test"]["loss"]
        what = f"error {100 * (1 - top1):.2f}%" if top1 is not None else f"loss {loss:.4g}"
        Console(quiet=quiet).print(Text(f"{chosen.name}, network {network}: test {what}, in {folder}"))


def sweep(
    recipe: RecipeName,
    out: Out = None,
    data: DataRoot = None,
    engine: Annotated[Engine, typer.Option(help="Processes of this machine, or a Ray cluster.")] = "local",
    address: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Of a running Ray cluster; otherwise a local one is started.")
    ] = None,
    jobs: Annotated[int, typer.Option(metavar="N", help="Processes at a time; they share the cores.")] = 1,
    resume: Resume = False,
    set: Set = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train, prune and retrain every network of RECIPE with every method; killed, it goes on with --resume."""
    with plain_errors(), interruptible():
        chosen = recipes.read(recipe, set or ())
        console = Console(stderr=True, quiet=quiet)
        if chosen.differs:
            console.print(Text(f"{chosen.name} differs from the full recipe: {chosen.differs}", "dim"))
        folder = run_sweep(
            chosen,
            out,
            engine=engine,
            resume=resume,
            jobs=jobs,
            address=address,
            data_root=data,
            progress=console.is_terminal and not quiet,
            done=lambda name: console.print(Text(f"done: {name}", "dim")),
        )
        _show(folder, as_json, quiet)


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.", show_default=False)],
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show what a sweep found so far: a table, the smallest network that keeps its accuracy, and a curve."""
    with plain_errors(), interruptible():
        _show(folder, as_json, quiet)


def _show(folder: Path, as_json: bool, quiet: bool) -> None:
    found = findings.read_run(folder)
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2))
    else:
        Console(quiet=quiet).print(findings.as_text(found))
