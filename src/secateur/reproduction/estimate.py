"""What is still to run, and how long it may take on this machine."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from secateur.data import Data, dataset
from secateur.errors import SecateurError
from secateur.experiments.cascade import lacks_original, steps_left
from secateur.experiments.recipe import Recipe
from secateur.reproduction.allocation import HELDOUT
from secateur.tracing.trace import trace
from secateur.training.evaluation import batch_loss
from secateur.training.settings import Loss
from secateur.zoo.names import build

STEPS = 2  # batches that are timed, after a first one
LONG = 0.5  # seconds after which no further batch is timed
BATCHES = (4, 16, 64)  # samples in one of them: more where that is quick
QUICK = 0.1  # seconds of a forward pass
TRACED = "zoo:lenet5"  # a small network, whose tracing is timed for all
# Forward passes over the calibration samples that each method takes, measured on ResNet20; and any other method.
PASSES = {"ft": 1.0, "softnet": 1.0, "random": 1.0, "fpgm": 1.0, "thinet": 3.0, "pfp": 4.0, "residual": 24.0}
OTHERS = 6.0
CERTIFIED = 8.0  # forward passes over the held-out samples for the errors of all layers


@dataclass(frozen=True)
class Task:
    """One network to train, or to prune and retrain with one method, and its estimated seconds; None if unknown."""

    recipe: str
    network: int
    method: str | None
    left: int  # targets, or 1 for the training of an original
    seconds: float | None


@dataclass(frozen=True)
class Timing:
    """Seconds that a network takes on this machine."""

    step: float  # of training, per sample
    forward: float  # per sample
    trace: float  # before each cut


@dataclass(frozen=True)
class Speed:
    """The times of a network, and the sizes of the parts of its data."""

    times: Timing
    train: int
    validation: int
    test: int

    @classmethod
    def of(cls, recipe: Recipe, data_root: Path | None) -> Speed | None:
        """Time a few batches, once for all recipes of a network; None if the data or the network is not there."""
        try:
            sizes = list(_data(recipe.data, data_root)[1])
            times = _times(recipe.network, recipe.data, recipe.train.loss, data_root)
        except SecateurError:
            return None
        if recipe.validation == "test":
            sizes[1:] = [sizes[2] // 2, sizes[2] - sizes[2] // 2]
        if recipe.images:
            sizes = [min(size, recipe.images) for size in sizes]
        return cls(times, *sizes)

    def training(self, epochs: int) -> float:
        """Return the seconds of training the original, with its validation after every epoch."""
        return epochs * (self.times.step * self.train + self.times.forward * self.validation)

    def evaluation(self) -> float:
        """Return the seconds of evaluating the original on validation and test data."""
        return self.times.forward * (self.validation + self.test)

    def pruning(self, recipe: Recipe, method: str) -> float:
        """Return the seconds of one cut by a method."""
        name = re.match(r"\w+", method)
        passes = PASSES.get(name[0] if name else "", OTHERS)
        return self.times.trace + passes * self.times.forward * (recipe.settings(method).samples or self.train)


def tasks(recipe: Recipe, folder: Path, data_root: Path | None) -> list[Task]:
    """Return what is missing in the folder of a run, with estimated times."""
    missing = list(_missing(recipe, folder))
    speed = Speed.of(recipe, data_root) if missing else None
    found = []
    for network, method, left in missing:
        if speed is None:
            seconds = None
        elif method is None:
            seconds = speed.evaluation() + (0.0 if recipe.weights else speed.training(recipe.train.epochs))
        else:
            # A network with a share s of the parameters or MACs is taken to need a share s of the time.
            rest = sum(1 - ratio for ratio in recipe.ratios[-left:])
            again = speed.training(recipe.retrain.epochs) + 2 * speed.evaluation()  # as cut, and retrained
            seconds = rest * again + left * speed.pruning(recipe, method)
        found.append(Task(recipe.name, network, method, left, seconds))
    return found


def allocation_task(recipe: Recipe, methods: Sequence[str], folder: Path, data_root: Path | None) -> Task:
    """Return the measurement of an allocation: the original, one cut for each method, and its certificates."""
    speed = Speed.of(recipe, data_root)
    seconds = None
    if speed is not None:
        trained = (folder / "network-0" / "original.json").is_file()
        training = 0.0 if recipe.weights else speed.training(recipe.train.epochs)
        cuts = sum(speed.pruning(recipe, method) for method in methods)
        certificates = len(methods) * (
            speed.times.trace + CERTIFIED * speed.times.forward * min(HELDOUT, speed.validation)
        )
        seconds = (0.0 if trained else training + speed.evaluation()) + cuts + certificates
    return Task(recipe.name, 0, "allocation", 1, seconds)


def in_words(seconds: float | None) -> str:
    """Return a time for people.

    >>> in_words(5400)
    '1.5 h'
    """
    if seconds is None:
        return "unknown"
    for size, unit in ((365 * 86400, "years"), (86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s"


def _missing(recipe: Recipe, folder: Path) -> Iterator[tuple[int, str | None, int]]:
    for number in range(recipe.networks):
        if lacks_original(recipe, number, folder):
            yield number, None, 1
    for number in range(recipe.networks):
        for method in recipe.methods:
            if left := steps_left(recipe, number, method, folder):
                yield number, method, left


@cache
def _data(name: str, root: Path | None) -> tuple[Data, tuple[int, int, int]]:
    """Return a few training samples of a data set, and the sizes of its parts."""
    train, validation, test = (
        dataset(name, part, root=root, download=False) for part in ("train", "validation", "test")
    )
    few = train.take(torch.arange(min(BATCHES[-1], len(train))))
    return few, (len(train), len(validation), len(test))


@cache
def _times(network: str, data: str, loss: Loss, root: Path | None) -> Timing:
    """Return the times of a network, which no other recipe of it has to measure again."""
    model = build(network)
    x, y = _batch(model, _data(data, root)[0])

    def learn() -> None:
        batch_loss(model.train(), (x, y), loss)[0].backward()

    def run() -> None:
        with torch.no_grad():
            model.eval()(x)

    return Timing(_timed(learn) / len(x), _timed(run) / len(x), _layer_trace() * _layers(model))


@cache
def _layer_trace() -> float:
    """Return the seconds that tracing takes for each layer: it depends little on what the layers compute."""
    model, x = build(TRACED).eval(), torch.zeros(1, 1, 28, 28)
    trace(model, x)  # the first one imports most of torch.export
    return _timed(lambda: trace(model, x)) / _layers(model)


def _layers(model: nn.Module) -> int:
    return sum(not list(module.children()) for module in model.modules())


def _batch(model: nn.Module, data: Data) -> tuple[Tensor, Tensor]:
    """Return a batch that is as large as its time allows: larger ones take less time per sample."""
    for size in BATCHES:
        chosen = torch.arange(min(size, len(data)))
        x = data.inputs(chosen)
        start = time.perf_counter()
        with torch.no_grad():
            model.eval()(x)
        if time.perf_counter() - start > QUICK:
            break
    return x, data.targets[chosen]


def _timed(run: Callable[[], object]) -> float:
    """Return the shortest of a few times; the first, which also prepares, is enough where it is long."""
    times = list[float]()
    while len(times) <= STEPS and sum(times) < LONG:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)
