"""Settings of a training run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

from secateur.errors import UsageError

Optimizer = Literal["sgd", "adam"]
Loss = Literal["cross-entropy", "mse"]
Precision = Literal["auto", "off", "bf16", "fp16"]
MemoryFormat = Literal["auto", "contiguous", "channels_last"]
Schedule = Literal["onecycle", "cosine", "linear", "steps"]
RATES = {"sgd": 0.01, "adam": 1e-3}  # the default learning rates


@dataclass(frozen=True)
class Training:
    """The settings of a training run; an invalid value is a `UsageError` that names it.

    >>> Training(epochs=10)
    >>> Training(epochs=182, lr=0.1, weight_decay=1e-4, milestones=(91, 136))
    >>> Training(epochs=300, lr=0.05, step_every=30, gamma=0.5)

    The defaults suit the retraining of a pruned network: one cycle of the learning rate, and some weight decay.

    Args:
        epochs: number of epochs.
        optimizer: `"sgd"` or `"adam"`.
        lr: the largest learning rate; 0.01 for SGD and 0.001 for Adam if not given.
        momentum: of SGD.
        nesterov: whether the momentum is Nesterov's.
        weight_decay: as in torch.
        schedule: the learning rate over time. `"onecycle"` rises to lr in the first three tenths and falls again,
            `"cosine"` and `"linear"` fall from lr, `"steps"` is constant except for its steps. The default is
            `"steps"` where steps are given, otherwise `"onecycle"`.
        milestones: epochs after which the learning rate is multiplied by gamma,
        step_every: or the number of epochs between two such steps.
        gamma: factor of the learning rate.
        warmup_epochs: epochs in which the learning rate rises linearly, batch by batch.
        total_epochs: the length of the schedule if only its last `epochs` are trained, with the learning rates that the
            original saw at its end (learning-rate rewinding).
        label_smoothing: of the cross entropy.
        clip_norm: largest norm of the gradient.
        ema: decay of an exponential moving average of the weights, such as 0.999; validation sees the average, and it
            is the result.
        norm_batches: number of training batches on which the statistics of batch norms are estimated again at the end.
        temperature: of the softmax of both networks, where class scores are compared with those of a teacher.
        teacher_weight: of the teacher's outputs, from 0 to 1; the labels have the rest.
        feature_weight: of the teacher's features, the inputs of the last layer, on top of the other losses.
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
    lr: float = None  # type: ignore[assignment]  # by the optimizer
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    schedule: Schedule = None  # type: ignore[assignment]  # by milestones and step_every
    milestones: tuple[int, ...] = ()
    step_every: int | None = None
    gamma: float = 0.1
    warmup_epochs: int = 0
    total_epochs: int | None = None
    label_smoothing: float = 0.0
    clip_norm: float | None = None
    ema: float | None = None
    norm_batches: int = 0
    temperature: float = 4.0
    teacher_weight: float = 0.9
    feature_weight: float = 5.0
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
        if self.lr is None:
            object.__setattr__(self, "lr", RATES.get(self.optimizer, 1.0))  # an unknown optimizer is refused below
        if self.schedule is None:
            object.__setattr__(self, "schedule", "steps" if self.milestones or self.step_every else "onecycle")
        for names, valid, expected in RULES:
            for name in names.split():
                if not valid(getattr(self, name)):
                    raise _refusal(self, name, expected)
        if self.step_every and self.milestones:
            raise UsageError("step_every and milestones are both given", remedy="use one of them")
        if self.schedule != "steps" and (self.milestones or self.step_every):
            raise _refusal(self, "schedule", "'steps', or neither milestones nor step_every")
        if self.total_epochs is not None and self.total_epochs < self.epochs:
            raise _refusal(self, "total_epochs", f"at least the {self.epochs} epochs that are trained")
        if self.warmup_epochs and self.warmup_epochs >= (self.total_epochs or self.epochs) and self.schedule != "steps":
            raise _refusal(self, "warmup_epochs", "fewer epochs than the schedule has")
        if self.nesterov and (self.optimizer != "sgd" or not self.momentum):
            raise _refusal(self, "nesterov", "False, or optimizer='sgd' with a momentum above 0")
        if self.label_smoothing and self.loss != "cross-entropy":
            raise _refusal(self, "label_smoothing", "0, or loss='cross-entropy'")


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
    ("epochs warmup_epochs norm_batches seed", lambda value: _is_whole(value, 0), "a whole number from 0 up"),
    (
        "step_every patience total_epochs",
        lambda value: value is None or _is_whole(value, 1),
        "a whole number from 1 up",
    ),
    ("lr gamma temperature", lambda value: _is_number(value) and value > 0, "a number above 0"),
    ("clip_norm", lambda value: value is None or (_is_number(value) and value > 0), "a number above 0"),
    ("weight_decay feature_weight", lambda value: _is_number(value) and value >= 0, "a number from 0 up"),
    ("momentum label_smoothing", lambda value: _is_number(value) and 0 <= value < 1, "a number from 0 up, below 1"),
    ("ema", lambda value: value is None or (_is_number(value) and 0 < value < 1), "a number between 0 and 1"),
    ("teacher_weight", lambda value: _is_number(value) and 0 <= value <= 1, "a number from 0 to 1"),
    ("nesterov compile sync_batchnorm", lambda value: isinstance(value, bool), "True or False"),
    ("milestones", _are_milestones, "increasing whole numbers of epochs, such as (30, 60)"),
    _one_of("optimizer", Optimizer),
    _one_of("schedule", Schedule),
    _one_of("loss", Loss),
    _one_of("amp", Precision),
    _one_of("memory_format", MemoryFormat),
]
