"""`secateur train`, `sweep` and `report`: experiments by a recipe."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.text import Text

import secateur as sc
from secateur.cli.options import OUTPUT, RUN, argument, count, option
from secateur.cli.report import GRACE, show_sweep
from secateur.cli.screen import Screen, TableScreen
from secateur.experiments import recipe as recipes
from secateur.experiments.cascade import Parts, train_original
from secateur.experiments.lock import only_run
from secateur.experiments.sweep import Engine, prepare
from secateur.report.live import serve
from secateur.storage.files import read_json


@dataclass(frozen=True)
class Run:
    """The options for a run by a recipe."""

    recipe: Annotated[str, argument("RECIPE", "Name of a recipe, or a YAML file of your own.")]
    out: Annotated[Path | None, option(RUN, "DIR", "Folder of the run; by default runs/RECIPE.")] = None
    data: Annotated[Path | None, option(RUN, "DIR", "Folder of the data sets; by default SECATEUR_DATA.")] = None
    resume: Annotated[bool, option(RUN, "", "Continue a run that exists.", "--resume")] = False
    set: Annotated[
        list[str] | None, option(RUN, "KEY=VALUE", "Change a setting, such as train.epochs=3; may be repeated.")
    ] = None

    def read(self) -> recipes.Recipe:
        """Return the recipe with the changes."""
        return recipes.read(self.recipe, self.set or ())


def train(
    *,
    run: Run,
    network: Annotated[int, option(RUN, "N", "Number of the network in the recipe, from 0.")] = 0,
    screen: Screen,
) -> None:
    """Train one network of RECIPE, unpruned; a later sweep with --resume continues from it."""
    recipe = run.read()
    folder = (run.out or Path("runs") / recipe.name).resolve()
    with only_run(folder):
        prepare(recipe, folder, run.resume)
        train_original(recipe, network, folder, Parts.of(recipe, run.data), progress=screen.live)
    figures = read_json(folder / f"network-{network}" / "original.json")
    top1, loss = figures["test"]["top1"], figures["test"]["loss"]
    error = f"loss {loss:.4g}" if top1 is None else f"error {100 * (1 - top1):.2f}%"
    screen.show(
        {"recipe": recipe.name, "network": network, "out": str(folder)} | figures,
        Text(f"{recipe.name}, network {network}: test {error}, in {folder}"),
    )


def sweep(
    *,
    run: Run,
    engine: Annotated[Engine, option(RUN, "KIND", "local: processes of this machine; ray: a Ray cluster.")] = "local",
    address: Annotated[
        str | None, option(RUN, "ADDRESS", "Address of a Ray cluster; by default a local one is started.")
    ] = None,
    jobs: Annotated[int, count(RUN, "Processes that run at the same time and share the cores.")] = 1,
    live: Annotated[
        bool, option(OUTPUT, "", "Serve a page that follows the sweep, on this machine.", "--live")
    ] = False,
    screen: TableScreen,
) -> None:
    """Train, prune and retrain every network of RECIPE with every method; continue a stopped run with --resume."""
    recipe = run.read()
    if recipe.differs:
        screen.log(f"{recipe.name} differs from the full recipe: {recipe.differs}")
    folder = (run.out or Path("runs") / recipe.name).resolve()
    with serve([folder]) if live else nullcontext() as place:
        if place:
            screen.log(f"live: {place}")
        sc.sweep(
            recipe,
            folder,
            engine=engine,
            resume=run.resume,
            jobs=jobs,
            address=address,
            data_root=run.data,
            progress=screen.live,
            done=lambda name: screen.log(f"done: {name}"),
        )
        if live:
            time.sleep(GRACE)  # for the page to get the last results
    show_sweep(folder, screen)
