"""How to train: the settings, and the learning rate they mean at each moment."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
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
    """The settings of one training run; a value that means nothing is a `UsageError` that names it.

    >>> Training(epochs=182, lr=0.1, weight_decay=1e-4, milestones=(91, 136))
    >>> Training(epochs=300, lr=0.05, step_every=30, gamma=0.5)
    """

    epochs: int
    optimizer: Optimizer = "sgd"
    lr: float = 0.1
    momentum: float = 0.9  # of SGD; Adam goes by its own two
    nesterov: bool = False
    weight_decay: float = 0.0
    milestones: tuple[int, ...] = ()  # the rate is multiplied by gamma after so many epochs,
    step_every: int | None = None  # or every so many epochs
    gamma: float = 0.1
    warmup_epochs: int = 0  # the rate rises in a straight line, batch by batch
    label_smoothing: float = 0.0
    clip_norm: float | None = None  # the gradient is never longer than this
    loss: Loss = "cross-entropy"
    amp: Precision = "auto"  # full precision on the CPU, half precision on a GPU
    compile: bool = False
    sync_batchnorm: bool = False  # on GPUs only: batch norms see the batches of all processes
    memory_format: MemoryFormat = "auto"  # channels_last for images in convolutions, if the network bears it
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.milestones, Sequence) and not isinstance(self.milestones, str):
            object.__setattr__(self, "milestones", tuple(self.milestones))  # a list, as JSON has it, compares unequal
        _check(self)


def learning_rate(settings: Training, epoch: int, through: float = 0.0) -> float:
    """The learning rate in an epoch, counted from 0; in a warm-up also by how much of the epoch is through.

    >>> learning_rate(Training(epochs=40, lr=0.01, milestones=(25, 35)), 30)
    0.001
    """
    if settings.step_every:
        drops = epoch // settings.step_every
    else:
        drops = bisect_right(settings.milestones, epoch)
    rate = settings.lr * settings.gamma**drops
    if epoch < settings.warmup_epochs:
        rate *= (epoch + through) / settings.warmup_epochs
    return rate


def _check(settings: Training) -> None:
    """Refuse settings that mean nothing."""
    whole = {"epochs": 0, "warmup_epochs": 0, "seed": 0} | ({} if settings.step_every is None else {"step_every": 1})
    for name, least in whole.items():
        if not _is_whole(getattr(settings, name), least):
            raise _refusal(settings, name, f"a whole number from {least} up")
    positive = ["lr", "gamma"] + ([] if settings.clip_norm is None else ["clip_norm"])
    for name in positive:
        if not (_is_number(getattr(settings, name)) and getattr(settings, name) > 0):
            raise _refusal(settings, name, "a number above 0")
    if not (_is_number(settings.weight_decay) and settings.weight_decay >= 0):
        raise _refusal(settings, "weight_decay", "a number from 0 up")
    for name in ("momentum", "label_smoothing"):
        if not (_is_number(getattr(settings, name)) and 0 <= getattr(settings, name) < 1):
            raise _refusal(settings, name, "a number from 0 up and below 1")
    for name, options in (
        ("optimizer", Optimizer),
        ("loss", Loss),
        ("amp", Precision),
        ("memory_format", MemoryFormat),
    ):
        if getattr(settings, name) not in get_args(options):
            raise _refusal(settings, name, " or ".join(map(repr, get_args(options))))
    for name in ("nesterov", "compile", "sync_batchnorm"):
        if not isinstance(getattr(settings, name), bool):
            raise _refusal(settings, name, "True or False")
    steps = settings.milestones
    if (
        not isinstance(steps, tuple)
        or not all(_is_whole(n, 1) for n in steps)
        or any(a >= b for a, b in pairwise(steps))
    ):
        raise _refusal(settings, "milestones", "rising whole numbers of epochs, such as (30, 60)")
    if settings.step_every and settings.milestones:
        raise UsageError("step_every and milestones are both given", remedy="give one of them")
    if settings.nesterov and (settings.optimizer != "sgd" or not settings.momentum):
        raise _refusal(settings, "nesterov", "False, or optimizer='sgd' with a momentum above 0")
    if settings.label_smoothing and settings.loss != "cross-entropy":
        raise _refusal(settings, "label_smoothing", "0, or loss='cross-entropy'")


def _refusal(settings: Training, name: str, wanted: str) -> UsageError:
    return UsageError(f"{name} is {getattr(settings, name)!r}", remedy=f"give {wanted}")


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
