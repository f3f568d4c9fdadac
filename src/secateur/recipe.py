"""A recipe: which networks are trained on which data, how they are pruned and retrained, how often."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from secateur.errors import UsageError
from secateur.methods import METHODS
from secateur.methods.pfp import Select
from secateur.schedule import check_ratios, geometric, hyperharmonic
from secateur.settings import Entry, fill, merge, override, read_yaml
from secateur.training import Training


@dataclass(frozen=True)
class Pruning:
    """How a network is pruned; the names are those of `sc.prune`."""

    select: Select = "derand"  # of pfp; the other methods have no such choice
    sensitivity: str = "max"
    allocation: str | None = None  # what belongs to the method if not given
    repair: bool | None = None
    delta: float = 1e-16
    C: float = 1.0
    points: int = 256
    resource: Literal["params", "macs"] = "params"
    keep: tuple[str, ...] = ()
    at_least: int = 1
    round_to: int = 1


@dataclass(frozen=True)
class Schedule:
    """Prune ratios by a formula."""

    kind: Literal["hyperharmonic", "geometric"]
    steps: int
    alpha: float = 1.0  # of the hyperharmonic
    last: float = 0.9  # of the geometric

    def ratios(self) -> tuple[float, ...]:
        if self.kind == "hyperharmonic":
            return hyperharmonic(self.alpha, self.steps)
        return geometric(self.last, self.steps)


@dataclass(frozen=True)
class Recipe:
    """Everything that a sweep needs to know. `read` makes one from YAML."""

    name: str
    network: str  # as on the command line: zoo:lenet5
    data: str
    train: Training
    targets: tuple[float, ...] | Schedule  # prune ratios
    about: str = ""
    differs: str = ""  # of a shortened recipe: in what it differs from the one that it extends
    batch: int = 128
    retrain: Training = field(default=None)  # type: ignore[assignment]  # as `train` where nothing else is said
    prune: Pruning = Pruning()
    methods: tuple[str, ...] = ("pfp",)
    cascade: bool = True  # each step starts from the last retrained network; otherwise from the original
    networks: int = 3  # trained from seeds seed, seed + 1, ...
    seed: int = 0

    def __post_init__(self) -> None:
        if self.retrain is None:
            object.__setattr__(self, "retrain", self.train)
        for name in self.methods:
            if name not in METHODS:
                raise UsageError(f"methods has {name!r}", remedy=f"use {', '.join(METHODS)}")
        for name, number in (("batch", self.batch), ("networks", self.networks)):
            if number < 1:
                raise UsageError(f"{name} is {number}", remedy="give a whole number from 1 up")
        check_ratios(self.ratios)

    @property
    def ratios(self) -> tuple[float, ...]:
        """The prune ratios, one for each step."""
        return self.targets.ratios() if isinstance(self.targets, Schedule) else self.targets

    def to_json(self) -> str:
        """Every setting, as text: two recipes are the same if these are."""
        return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True)


def names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(path.name.removesuffix(".yaml") for path in _folder().iterdir() if path.name.endswith(".yaml"))


def read(source: str | Path, assignments: Sequence[str] = ()) -> Recipe:
    """The recipe of a file, or of that name in the package.

    >>> read("lenet5-quick", ["train.epochs=1"]).network
    'zoo:lenet5'

    `extends: NAME` takes another recipe's settings as a start; `differs:` must then say what is other, and why.
    """
    return from_tree(override(_tree(_find(str(source), None), ()), assignments))


def from_tree(tree: Entry) -> Recipe:
    """The recipe that the settings describe; `retrain` starts from what `train` says."""
    if not isinstance(tree.value, dict):
        raise UsageError("a recipe is a mapping", layer=tree.where, remedy="write network: zoo:lenet5, and so on")
    parts = dict(tree.value)
    retrain = parts.pop("retrain", None)
    recipe = fill(Recipe, Entry(parts, tree.where))
    if retrain is None:
        return recipe
    return dataclasses.replace(recipe, retrain=fill(Training, retrain, defaults=recipe.train))


def _tree(path: Path, seen: tuple[Path, ...]) -> Entry:
    tree = read_yaml(path)
    if not isinstance(tree.value, dict) or "extends" not in tree.value:
        return tree
    parts = dict(tree.value)
    extends = parts.pop("extends")
    if path in seen:
        raise UsageError("the recipes extend each other in a circle", layer=extends.where, remedy="break it")
    if not parts.get("differs", Entry("", "")).value:
        raise UsageError("it extends another recipe", layer=extends.where, remedy="say in `differs:` what is other")
    base = _tree(_find(str(extends.value), path.parent, extends.where), (*seen, path))
    return merge(base, Entry(parts, tree.where))


def _find(name: str, near: Path | None, where: str | None = None) -> Path:
    """A file by its path, beside the one that names it, or in the package."""
    candidates = [Path(name), *([near / name, near / f"{name}.yaml"] if near else [])]
    for path in candidates:
        if path.is_file():
            return path.resolve()
    inside = Path(str(_folder())) / f"{name}.yaml"
    if inside.is_file():
        return inside
    close = difflib.get_close_matches(name, names(), n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there is: {', '.join(names())}"
    raise UsageError(f"there is no recipe {name!r}", layer=where, remedy=hint)


def _folder() -> Any:
    return resources.files("secateur").joinpath("recipes")
