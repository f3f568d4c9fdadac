"""The tables and figures of the paper, as data: which recipes they need, and the published values."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from secateur.errors import UsageError
from secateur.experiments.yaml_settings import fill, read_yaml

FOLDER = Path(str(resources.files(__package__).joinpath("items")))
Kind = Literal["table", "curves", "allocation", "settings"]


@dataclass(frozen=True)
class Run:
    """One recipe of an item, and what the paper calls its network."""

    recipe: str
    label: str
    quick: str | None = None  # the recipe that --quick runs instead; without one the run is left out
    short: str | None = None  # a shortened recipe from a checkpoint, used where the full one has no results


@dataclass(frozen=True)
class Published:
    """One published row: of the paper itself, or as it cites others. Percent, and points of change."""

    network: str
    method: str
    row: str = "within 0.5"
    original: float | None = None
    change: float | None = None
    pr: float | None = None
    fr: float | None = None
    original5: float | None = None
    change5: float | None = None
    source: str = ""  # of a row that neither the paper's authors nor we have run


@dataclass(frozen=True)
class Item:
    """A table or a figure of the paper.

    Attributes:
        name: as on the command line.
        kind: a table of selected networks, curves over the targets, the allocation to the layers, or settings.
        paper: its number in the paper.
        rows: of a table, which networks are selected: "within 0.5" (and 1, 2, 4), "original", "lowest".
        stage: of curves, whether networks are shown before (`pruned`) or after retraining (`retrained`).
        methods: that are shown, in this order; all if empty.
        timed: whether the networks are timed too, at batch 1 on one thread.
    """

    name: str
    kind: Kind
    title: str
    paper: str
    runs: tuple[Run, ...]
    rows: tuple[str, ...] = ("within 0.5",)
    stage: tuple[str, ...] = ("retrained",)
    methods: tuple[str, ...] = ()
    timed: bool = False
    published: tuple[Published, ...] = ()
    note: str = ""


def names() -> list[str]:
    """Return the names of all items."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read(name: str) -> Item:
    """Return an item by its name.

    >>> read("table-lenet").paper
    'Table 1'
    """
    if name not in names():
        close = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {close[0]}?" if close else f"use one of {', '.join(names())}"
        raise UsageError(f"there is no table or figure {name!r}", remedy=hint)
    return fill(Item, read_yaml(FOLDER / f"{name}.yaml"))
