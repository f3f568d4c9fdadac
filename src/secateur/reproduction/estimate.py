"""What is still to run, and how long it may take on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from secateur.data import dataset
from secateur.errors import SecateurError
from secateur.experiments.cascade import folder_name
from secateur.experiments.recipe import Recipe
from secateur.training.evaluation import batch_loss
from secateur.zoo.names import build

STEPS = 2  # batches that are timed
PRUNING = 30.0  # forward and backward passes over the calibration samples that pruning is taken to cost
FALLBACK = 50_000  # samples, if the data cannot be read


@dataclass(frozen=True)
class Task:
    """One network to train, or to prune and retrain with one method, and its estimated seconds; None if unknown."""

    recipe: str
    network: int
    method: str | None
    left: int  # targets, or 1 for the training of an original
    seconds: float | None


def tasks(recipe: Recipe, folder: Path, data_root: Path | None) -> list[Task]:
    """Return what is missing in the folder of a run, with estimated times."""
    missing = list(_missing(recipe, folder))
    if not missing:
        return []
    sample, count = _per_sample(recipe, data_root)
    ratios = recipe.ratios
    found = []
    for network, method, left in missing:
        if sample is None:
            seconds = None
        elif method is None:
            seconds = sample * count * recipe.train.epochs if not recipe.weights else 0.0
        else:
            # A network with a share s of the parameters is taken to need a share s of the time.
            rest = sum(1 - ratio for ratio in ratios[-left:])
            pruning = PRUNING * (recipe.prune.samples or count) * left
            seconds = sample * (count * recipe.retrain.epochs * rest + pruning)
        found.append(Task(recipe.name, network, method, left, seconds))
    return found


def in_words(seconds: float | None) -> str:
    """Return a time for people.

    >>> in_words(5400)
    '1.5 h'
    """
    if seconds is None:
        return "unknown"
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _missing(recipe: Recipe, folder: Path) -> Iterator[tuple[int, str | None, int]]:
    for number in range(recipe.networks):
        home = folder / f"network-{number}"
        if not (home / "original.json").is_file():
            yield number, None, 1
    for number in range(recipe.networks):
        for method in recipe.methods:
            files = sorted((folder / f"network-{number}" / folder_name(method)).glob("step-*.json"))
            ended = files and '"stopped"' in files[-1].read_text()
            if len(files) < len(recipe.ratios) and not ended:
                yield number, method, len(recipe.ratios) - len(files)


def _per_sample(recipe: Recipe, data_root: Path | None) -> tuple[float | None, int]:
    """Return the seconds of one training step per sample, timed here, and the number of training samples."""
    try:
        data = dataset(recipe.data, "train", root=data_root, download=False)
        model = build(recipe.network)
    except SecateurError:
        return None, FALLBACK
    batch = min(recipe.batch, 32, len(data))
    chosen = torch.arange(batch)
    return _timed(model, (data.inputs(chosen), data.targets[chosen]), recipe) / batch, len(data)


def _timed(model: nn.Module, batch: Any, recipe: Recipe) -> float:
    """Return the seconds of a forward and backward pass."""
    model.train()
    for step in range(STEPS + 1):
        if step == 1:  # the first one prepares
            start = time.perf_counter()
        loss, _ = batch_loss(model, batch, recipe.train.loss)
        loss.backward()
    return (time.perf_counter() - start) / STEPS
