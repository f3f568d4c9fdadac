"""The protocol of a record in words: where the network comes from, how it was pruned, how it was retrained."""

from __future__ import annotations

import hashlib
from pathlib import Path

from secateur._version import __version__
from secateur.experiments.recipe import Recipe, Schedule
from secateur.training.settings import Training


def origin(recipe: Recipe) -> dict[str, str]:
    """Return where the original network comes from, and the version of this package.

    >>> origin(read("lenet5"))["original"]
    'trained on mnist: 40 epochs, batch 64, sgd 0.01, momentum 0.9, weight decay 0.0001, x0.1 after 25, 35'
    """
    trained = f"trained on {recipe.data}: {training(recipe.train, recipe.batch)}"
    start = f"weights {recipe.weights}" if recipe.weights else trained if recipe.train.epochs else "not trained"
    if recipe.validation == "test":
        start += "; half of the test data is used for validation, the other half for testing"
    if recipe.images:
        start += f"; a miniature, with at most {recipe.images} samples of each part of the data"
    return {"original": start, "secateur": __version__}


def protocol(recipe: Recipe, method: str) -> dict[str, str]:
    """Return how the networks of a method are made.

    >>> protocol(read("lenet300100"), "ft")["pruned"]
    'in one shot, from the original; 256 calibration samples; targets are of the params'
    """
    settings = recipe.settings(method)
    steps = "in a cascade, each target from the last network" if recipe.cascade else "in one shot, from the original"
    repair = "repaired" if settings.repaired else "not repaired"
    pruned = f"{steps}; {settings.samples} calibration samples; {repair}; targets are of the {recipe.resource}"
    if settings.prune_inputs:
        pruned += "; inputs of the network pruned, too"
    if settings.method == "pfp":
        pruned += f"; {settings.select or 'derand'}, delta {settings.delta:g}, C {settings.C}"
    if recipe.recover:
        pruned += f"; recovered with {recipe.recover.steps} gradient steps on the calibration samples, without labels"
    retrained = training(recipe.retrain, recipe.batch) if recipe.retrain.epochs else "not retrained"
    if recipe.retrain.epochs and recipe.retrain.teacher:
        retrained += ", the original as teacher"
    return origin(recipe) | {"pruned": pruned, "retrained": retrained, "differs": recipe.differs}


def training(settings: Training, batch: int) -> str:
    """Return the settings of a training run in one line."""
    words = [f"{settings.epochs} epochs", f"batch {batch}", f"{settings.optimizer} {settings.lr:g}"]
    if settings.optimizer == "sgd":
        words.append(f"{'Nesterov ' if settings.nesterov else ''}momentum {settings.momentum:g}")
    words.append(f"weight decay {settings.weight_decay:g}")
    if decay := learning_rate_decay(settings):
        words.append(decay)
    return ", ".join(words)


def learning_rate_decay(settings: Training) -> str:
    """Return when the learning rate falls, and by which factor; empty if it does not."""
    if settings.step_every:
        return f"x{settings.gamma:g} every {settings.step_every}"
    if settings.milestones:
        return f"x{settings.gamma:g} after {', '.join(map(str, settings.milestones))}"
    return "" if settings.schedule == "steps" else settings.schedule


def targets(recipe: Recipe) -> str:
    """Return the targets of a recipe: the exponent of the paper's schedule, or the prune ratios."""
    if isinstance(recipe.targets, Schedule):
        form = recipe.targets
        return f"{form.kind}, alpha {form.alpha:g}, {form.steps} steps"
    return ", ".join(f"{ratio:.0%}" for ratio in recipe.targets)


def file_identity(path: Path) -> dict[str, str]:
    """Return name and checksum of a file of weights."""
    with path.open("rb") as file:
        return {"file": path.name, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
