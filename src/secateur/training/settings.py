"""Settings of a training run, and the learning rate at each moment."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

from secateur.errors import UsageError

Optimizer = Literal["sgd", "adam"]
Loss = Literal["cross-entropy", "mse"]
Precision = Literal["auto", "off", "bf16", "fp16"]
MemoryFormat = Literal["auto", "contiguous", "channels_last"]


@dataclass(frozen=True)
class Training:
    """The settings of a training run; an invalid value is a `UsageError` that names it.

    >>> Training(epochs=182, lr=0.1, weight_decay=1e-4, milestones=(91, 136))
    >>> Training(epochs=300, lr=0.05, step_every=30, gamma=0.5)

    Args:
        epochs: number of epochs.
        optimizer: `"sgd"` or `"adam"`.
        lr: learning rate.
        momentum: of SGD.
        nesterov: whether the momentum is Nesterov's.
        weight_decay: as in torch.
        milestones: epochs after which the learning rate is multiplied by gamma,
        step_every: or the number of epochs between two such steps.
        gamma: factor of the learning rate.
        warmup_epochs: epochs in which the learning rate rises linearly, batch by batch.
        label_smoothing: of the cross entropy.
        clip_norm: largest norm of the gradient.
        loss: `"cross-entropy"` or `"mse"`.
        amp: mixed precision; `"auto"` is off on the CPU, and bf16 or fp16 on a GPU.
        compile: use `torch.compile`.
        sync_batchnorm: on GPUs, let batch norms see the batches of all processes.
        memory_format: `"auto"` is channels_last for images in convolutions, if the network accepts it.
        seed: of every random number.
        patience: stop after this many epochs without a better validation: more correct answers, or without classes a
            smaller loss. The weights are those of the last epoch.
    """

    epochs: int
    optimizer: Optimizer = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    milestones: tuple[int, ...] = ()
    step_every: int | None = None
    gamma: float = 0.1
    warmup_epochs: int = 0
    label_smoothing: float = 0.0
    clip_norm: float | None = None
    loss: Loss = "cross-entropy"
    amp: Precision = "auto"
    compile: bool = False
    sync_batchnorm: bool = False
    memory_format: MemoryFormat = "auto"
    seed: int = 0
    patience: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.milestones, Sequence) and not isinstance(self.milestones, str):
            object.__setattr__(self, "milestones", tuple(self.milestones))  # a list, as in JSON, compares unequal
        for names, valid, expected in RULES:
            for name in names.split():
                if not valid(getattr(self, name)):
                    raise _refusal(self, name, expected)
        if self.step_every and self.milestones:
            raise UsageError("step_every and milestones are both given", remedy="use one of them")
        if self.nesterov and (self.optimizer != "sgd" or not self.momentum):
            raise _refusal(self, "nesterov", "False, or optimizer='sgd' with a momentum above 0")
        if self.label_smoothing and self.loss != "cross-entropy":
            raise _refusal(self, "label_smoothing", "0, or loss='cross-entropy'")


def learning_rate(settings: Training, epoch: int, through: float = 0.0) -> float:
    """Return the learning rate in an epoch, counted from 0.

    >>> learning_rate(Training(epochs=40, lr=0.01, milestones=(25, 35)), 30)
    0.001

    Args:
        through: finished share of the epoch, which matters during warm-up.
    """
    if settings.step_every:
        drops = epoch // settings.step_every
    else:
        drops = bisect_right(settings.milestones, epoch)
    rate = settings.lr * settings.gamma**drops
    if epoch < settings.warmup_epochs:
        rate *= (epoch + through) / settings.warmup_epochs
    return rate


def _refusal(settings: Training, name: str, expected: str) -> UsageError:
    return UsageError(f"{name} is {getattr(settings, name)!r}", remedy=f"use {expected}")


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_milestones(value: Any) -> bool:
    return isinstance(value, tuple) and all(_is_whole(n, 1) for n in value) and all(a < b for a, b in pairwise(value))


def _one_of(names: str, options: Any) -> tuple[str, Callable[[Any], bool], str]:
    return names, lambda value: value in get_args(options), " or ".join(map(repr, get_args(options)))


RULES: list[tuple[str, Callable[[Any], bool], str]] = [
    ("epochs warmup_epochs seed", lambda value: _is_whole(value, 0), "a whole number from 0 up"),
    ("step_every patience", lambda value: value is None or _is_whole(value, 1), "a whole number from 1 up"),
    ("lr gamma", lambda value: _is_number(value) and value > 0, "a number above 0"),
    ("clip_norm", lambda value: value is None or (_is_number(value) and value > 0), "a number above 0"),
    ("weight_decay", lambda value: _is_number(value) and value >= 0, "a number from 0 up"),
    ("momentum label_smoothing", lambda value: _is_number(value) and 0 <= value < 1, "a number from 0 up, below 1"),
    ("nesterov compile sync_batchnorm", lambda value: isinstance(value, bool), "True or False"),
    ("milestones", _are_milestones, "increasing whole numbers of epochs, such as (30, 60)"),
    _one_of("optimizer", Optimizer),
    _one_of("loss", Loss),
    _one_of("amp", Precision),
    _one_of("memory_format", MemoryFormat),
]
