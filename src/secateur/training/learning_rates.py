"""The learning rate at each moment of a training run."""

from __future__ import annotations

import math
from bisect import bisect_right

from secateur.training.settings import Training

RISE = 0.3  # share of the schedule in which the learning rate of onecycle rises
START = 1 / 25  # of onecycle, relative to the largest learning rate
END = 1e-3  # of every schedule that falls: the last batch is used too


def learning_rate(settings: Training, epoch: int, through: float = 0.0) -> float:
    """Return the learning rate in an epoch, counted from 0.

    >>> learning_rate(Training(epochs=40, lr=0.01, milestones=(25, 35)), 30)
    0.001

    Args:
        through: finished share of the epoch, which matters unless the learning rate changes in steps.
    """
    total = settings.total_epochs or settings.epochs
    epoch += total - settings.epochs  # rewound: only the end of the schedule is trained
    warmup = settings.warmup_epochs
    if settings.schedule == "steps":
        passed = epoch // settings.step_every if settings.step_every else bisect_right(settings.milestones, epoch)
        factor = settings.gamma**passed
    elif settings.schedule == "onecycle" and not warmup:
        done = (epoch + through) / total
        factor = _cosine(START, 1.0, done / RISE) if done < RISE else _cosine(1.0, END, (done - RISE) / (1 - RISE))
    else:
        done = max(0.0, epoch + through - warmup) / (total - warmup)
        factor = 1 + (END - 1) * done if settings.schedule == "linear" else _cosine(1.0, END, done)
    if epoch < warmup:
        factor *= (epoch + through) / warmup
    return settings.lr * factor


def _cosine(first: float, last: float, done: float) -> float:
    """Return the value of half a cosine wave between two values."""
    return last + (first - last) * (1 + math.cos(math.pi * done)) / 2
