"""A recipe: which networks are trained on which data, and how they are pruned and retrained."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from secateur.errors import UsageError
from secateur.experiments.schedule import check_ratios, geometric, hyperharmonic
from secateur.experiments.yaml_settings import Located, fill, merge, override, read_yaml
from secateur.pruning.settings import PruneSettings
from secateur.pruning.variants import Variant
from secateur.training.recovery import RecoverSettings
from secateur.training.settings import Training

BASE = PruneSettings(method="pfp")
ASIDE = ("name", "about", "differs", "methods", "networks")  # change nothing about the run of a method and a network
FOLDER = Path(str(resources.files(__package__).joinpath("recipes")))


@dataclass(frozen=True)
class Schedule:
    """Prune ratios by a formula."""

    kind: Literal["hyperharmonic", "geometric"]
    steps: int
    alpha: float = 1.0  # of the hyperharmonic schedule
    last: float = 0.9  # of the geometric schedule

    def ratios(self) -> tuple[float, ...]:
        if self.kind == "hyperharmonic":
            return hyperharmonic(self.alpha, self.steps)
        return geometric(self.last, self.steps)


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation of each channel, for pixels from 0 to 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Retraining(Training):
    """Training of a pruned network, with a teacher or without."""

    teacher: Literal["original"] | None = None


@dataclass(frozen=True)
class Recipe:
    """All settings of a sweep; `read` returns one from YAML."""

    name: str
    network: str  # by the name that the command line uses, such as zoo:lenet5
    data: str  # name of the data set
    train: Training
    targets: tuple[float, ...] | Schedule  # prune ratios
    about: str = ""
    differs: str = ""  # how a shortened recipe differs from the one that it extends
    weights: str | None = None  # a checkpoint to start from instead of training; also relative to the data's folder
    normalise: Normalisation | None = None  # of the images, where it differs from that of the data set
    validation: Literal["train", "test"] = "train"  # half of the test data, if the weights have seen all other data
    images: int | None = None  # of each part of the data, at most, chosen at random: for miniatures
    batch: int = 128
    retrain: Retraining = field(default=None)  # type: ignore[assignment]  # as `train` by default
    prune: PruneSettings = BASE  # method and seed are taken from `methods` and `seed`
    recover: RecoverSettings | None = None  # gradient steps without labels, after pruning and before retraining
    resource: Literal["params", "macs"] = "params"  # the cost that the targets are about
    methods: tuple[str, ...] = ("pfp",)  # with their options, as `compare` takes them: pfp:pivotal, ft+repair
    cascade: bool = True  # each step starts from the last retrained network instead of the original
    networks: int = 3  # trained (from `weights`: calibrated and retrained) with the seeds seed, seed + 1, ...
    seed: int = 0

    def __post_init__(self) -> None:
        if self.retrain is None:
            object.__setattr__(self, "retrain", Retraining(**vars(self.train)))
        self._check_methods()
        for name, own in (("method", "methods"), ("seed", "seed")):
            if getattr(self.prune, name) != getattr(BASE, name):
                raise UsageError(f"prune has its own {name}", remedy=f"set `{own}` of the recipe instead")
        for name, number in (("batch", self.batch), ("networks", self.networks), ("images", self.images)):
            if number is not None and number < 1:
                raise UsageError(f"{name} is {number}", remedy="use a whole number from 1 up")
        check_ratios(self.ratios)

    def _check_methods(self) -> None:
        known: dict[str, str] = {}
        for name in self.methods:
            try:
                settings = self.settings(name)
            except UsageError as error:
                raise UsageError(f"methods has {name!r}: {error.cause}", remedy=error.remedy) from error
            same = known.setdefault(repr((settings.resolve(), settings.repaired, settings.prune_inputs)), name)
            if same is not name:
                raise UsageError(f"methods has {same!r} and {name!r}, which are the same", remedy="leave one out")

    def settings(self, method: str) -> PruneSettings:
        """Return the settings for one of the methods: its own options, and those of `prune` where it has none."""
        own = Variant.parse(method).settings(dataclasses.replace(self.prune, select=None))
        shared = ("allocation", "repair", *(["select"] if own.method == "pfp" else []))
        rest = {name: getattr(self.prune, name) for name in shared if getattr(own, name) is None}
        return dataclasses.replace(own, **rest)

    @property
    def ratios(self) -> tuple[float, ...]:
        """The prune ratios, one for each step."""
        return self.targets.ratios() if isinstance(self.targets, Schedule) else self.targets

    def to_json(self) -> str:
        """Return every setting as JSON; equal recipes have equal JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True)

    def differences(self, stored: Mapping[str, Any]) -> list[str]:
        """Return the settings of a stored recipe that change what this one would do to a network and a method.

        Settings that the stored recipe does not have yet count as their defaults. Which methods, and how many networks,
        does not matter: each method and network is a run of its own.
        """
        known = json.loads(self.to_json())
        blank = Recipe("", "", "", Training(1, schedule="steps"), (0.5,))  # the only schedule of older recipes
        before = _filled(stored, json.loads(blank.to_json()))
        return sorted(name for name in known if name not in ASIDE[1:] and known[name] != before.get(name))


def _filled(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values, and the defaults where there are none, recursively."""
    inner = {
        name: _filled(value, defaults[name])
        for name, value in values.items()
        if isinstance(value, Mapping) and isinstance(defaults.get(name), Mapping)
    }
    return {**defaults, **values, **inner}


def names() -> list[str]:
    """Return the names of the recipes that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read(source: str | Path, assignments: Sequence[str] = ()) -> Recipe:
    """Return a recipe from a YAML file, or the recipe of that name in the package.

    >>> read("lenet5-quick", ["train.epochs=1"]).network
    'zoo:lenet5'

    A recipe with `extends: NAME` starts from the settings of another one, and says in `differs:` what it changes.

    Args:
        source: a path or a name.
        assignments: settings to change, such as `train.epochs=3`.
    """
    tree = override(_tree(_find(str(source), None), ()), assignments)
    if not isinstance(tree.value, dict):
        raise UsageError(
            f"expected a mapping, found {tree.plain()!r}", layer=tree.where, remedy="write network: zoo:lenet5, ..."
        )
    parts = _with_new_keys(tree.value)
    retrain = parts.pop("retrain", None)
    recipe = fill(Recipe, Located(parts, tree.where))
    recipe = dataclasses.replace(recipe, differs=_with_changes(recipe.differs, assignments))
    if retrain is None:
        return recipe
    return dataclasses.replace(recipe, retrain=fill(Retraining, retrain, defaults=_inherited(recipe, retrain)))


def _inherited(recipe: Recipe, retrain: Located) -> Retraining:
    """Return the settings that retraining takes over from training: no steps where it has a schedule of its own."""
    written = retrain.plain() if isinstance(retrain.value, dict) else {}
    steps: dict[str, Any] = {"milestones": (), "step_every": None}
    if written.get("schedule", "steps") != "steps":
        return Retraining(**vars(recipe.train) | steps | {"schedule": None})
    if written.keys() & steps.keys():
        return Retraining(**vars(recipe.train) | {"schedule": "steps"})
    return Retraining(**vars(recipe.train))


def _with_changes(differs: str, assignments: Sequence[str]) -> str:
    """Return how a recipe differs, with the settings that were changed: the text of its file does not know of them."""
    changed = [one.strip() for one in assignments if one.partition("=")[0].strip() not in ASIDE]
    if not changed:
        return differs
    return f"changed by {', '.join(changed)}" + (f"; apart from that: {differs}" if differs else "")


def _with_new_keys(parts: dict[str, Located]) -> dict[str, Located]:
    """Accept the keys of version 0.1 in `prune:`, with a warning."""
    prune = parts.get("prune")
    if prune is None or not isinstance(prune.value, dict):
        return dict(parts)
    inner, moved = dict(prune.value), {}
    if "points" in inner:
        inner["samples"] = _deprecated(inner.pop("points"), "prune.points", "prune.samples")
    if "resource" in inner:
        moved["resource"] = _deprecated(inner.pop("resource"), "prune.resource", "resource")
    return parts | moved | {"prune": Located(inner, prune.where)}


def _deprecated(item: Located, old: str, new: str) -> Located:
    message = f"{item.where}: {old} is deprecated and will be removed in 0.3; use {new}"
    warnings.warn(message, DeprecationWarning, stacklevel=4)
    return item


def _tree(path: Path, extending: tuple[Path, ...]) -> Located:
    """Return the settings of a file, over those of the recipes that it extends."""
    tree = read_yaml(path)
    if not isinstance(tree.value, dict) or "extends" not in tree.value:
        return tree
    parts = dict(tree.value)
    extends = parts.pop("extends")
    if path in extending:
        raise UsageError("recipes extend each other in a circle", layer=extends.where, remedy="break the circle")
    if "differs" not in parts or not parts["differs"].value:
        raise UsageError(
            "it extends another recipe", layer=extends.where, remedy="say in `differs:` what it changes, and why"
        )
    base = _tree(_find(str(extends.value), path.parent, extends.where), (*extending, path))
    return merge(base, Located(parts, tree.where))


def _find(name: str, near: Path | None, where: str | None = None) -> Path:
    """Return the path of a recipe: the file itself, one next to the file that names it, or one of the package."""
    beside = [near / name, near / f"{name}.yaml"] if near else []
    for path in (Path(name), *beside, FOLDER / f"{name}.yaml"):
        if os.path.isfile(path):  # unlike Path.is_file, it accepts names that are too long
            return path.resolve()
    close = difflib.get_close_matches(name, names(), n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"use a file, or one of {', '.join(names())}"
    raise UsageError(f"there is no recipe {name[:100]!r}", layer=where, remedy=hint)
