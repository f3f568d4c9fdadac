"""Evaluate a network on data: loss and accuracy, in one process or over several."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, Dataset, IterableDataset

from secateur._torch import pytree
from secateur.checks import known_keywords
from secateur.errors import SecateurError, UsageError
from secateur.network.batches import BATCH
from secateur.network.modules import device_of, mode, unwrap
from secateur.network.processes import sum_over_all
from secateur.training.settings import Loss

Step = Callable[[nn.Module, Any], Tensor]
MAX_PENDING = 64  # batches whose losses stay on the device


@dataclass(frozen=True)
class Evaluation:
    """Loss and accuracy of a network on data.

    Attributes:
        samples: number of samples.
        loss: mean over the samples.
        top1: share of samples whose class has the highest score; None without classes.
        top5: share of samples whose class is among the five highest scores; None for five classes or fewer.
    """

    samples: int
    loss: float
    top1: float | None = None
    top5: float | None = None


@known_keywords
def evaluate(
    model: nn.Module, batches: Iterable[Any], *, loss: Loss = "cross-entropy", step: Step | None = None
) -> Evaluation:
    """Return loss and accuracy over all samples, in evaluation mode; the model is not changed.

    >>> evaluate(model, [(images, labels)])
    Evaluation(samples=10000, loss=0.031, top1=0.991, top5=1.0)

    Under `torch.distributed` every process passes its own part of the data, and all get the result for the whole.

    Args:
        model: the network.
        batches: pairs (x, y) of tensors or numpy arrays, a `torch.utils.data.Dataset` of single samples, or whatever
            `step` takes.
        loss: `"cross-entropy"` or `"mse"`.
        step: `step(model, batch)` returns the mean loss of a batch, as for `train`; there is no accuracy then.
    """
    if loss not in get_args(Loss):
        raise UsageError(f"loss is {loss!r}", remedy=f"use {' or '.join(map(repr, get_args(Loss)))}")
    batches = in_batches(batches)
    check_batches(batches)
    inner = unwrap(model)
    device = device_of(inner)
    means = RunningMeans(device)
    with mode(inner, False), torch.no_grad():
        for batch in batches_of(batches, 0):
            batch = to_device(batch, device)
            if samples := size_of(batch):  # a part of the last batch may be empty
                means.add(samples, *batch_loss(inner, batch, loss, step=step, top5=True))
    return means.result()


def batch_loss(
    model: nn.Module, batch: Any, loss: Loss, *, step: Step | None = None, smoothing: float = 0.0, top5: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """Return the mean loss of a batch, and the numbers of samples that are correct in the top 1 and the top 5."""
    if step is not None:
        return _scalar(step(model, batch)), []
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        without = " without labels" if is_unlabelled(batch) else ""
        raise UsageError(
            f"expected a batch (x, y), got a {type(batch).__name__}{without}",
            layer="data",
            remedy="pass pairs, or step=: a function (model, batch) -> loss; with a teacher, train needs no labels",
        )
    x, y = batch
    scores = model(x)
    if not isinstance(scores, Tensor):
        raise UsageError(
            f"expected a tensor as output, got a {type(scores).__name__}",
            layer=type(unwrap(model)).__name__,
            remedy="pass step=: a function (model, batch) -> loss",
        )
    if loss == "mse":
        return mse_loss(scores, _shaped_like(y, scores)), []
    return cross_entropy(scores, y, label_smoothing=smoothing), _correct(scores.detach(), y, top5)


class RunningMeans:
    """Means over batches. Losses stay on their device and are fetched together, since each fetch stops a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sums: list[float] = []
        self._pending: list[tuple[int, Tensor]] = []
        self.batches = 0
        self.samples = 0
        self.not_finite: int | None = None  # the first batch, from 1, whose loss is NaN or infinite

    @property
    def loss(self) -> float:
        """The mean loss so far, of this process."""
        return self._sums[0] / self.samples if self.samples else math.nan

    def add(self, samples: int, loss: Tensor, correct: list[Tensor]) -> None:
        """Add one batch."""
        self._pending.append((samples, torch.stack([loss.detach().double(), *(one.double() for one in correct)])))
        if len(self._pending) >= MAX_PENDING:
            self.fetch()

    def fetch(self) -> None:
        """Fetch pending losses."""
        rows = torch.stack([row for _, row in self._pending]).tolist() if self._pending else []
        for (samples, _), (loss, *correct) in zip(self._pending, rows, strict=True):
            self.batches += 1
            self.samples += samples
            if self.not_finite is None and not math.isfinite(loss):
                self.not_finite = self.batches
            row = [loss * samples, *correct]
            self._sums = [a + b for a, b in zip(self._sums, row, strict=True)] if self._sums else row
        self._pending = []

    def result(self) -> Evaluation:
        """Return the means over all processes."""
        self.fetch()
        width = len(self._sums)
        sums = self._sums + [0.0] * (3 - width)
        *totals, samples, columns = sum_over_all([*sums, self.samples, width * self.samples], self._device)
        if not samples:
            raise SecateurError(
                "there is no data: not one batch",
                layer="data",
                remedy="pass at least one batch; a generator is exhausted after one epoch",
            )
        means = [total / samples for total in totals][: round(columns / samples)]
        return Evaluation(int(samples), *means)


def in_batches(data: Any, *, shuffle: bool = False) -> Any:
    """Return a data set of single samples in batches of 64; anything else unchanged."""
    if not isinstance(data, Dataset) or callable(getattr(data, "epoch", None)):
        return data
    return DataLoader(data, batch_size=BATCH, shuffle=shuffle and not isinstance(data, IterableDataset))


def check_batches(batches: Any) -> None:
    """Refuse anything but batches; a single batch (x, y) is a common mistake."""
    has_epochs = callable(getattr(batches, "epoch", None))
    if not has_epochs and (
        isinstance(batches, Tensor | np.ndarray | tuple | dict) or not isinstance(batches, Iterable)
    ):
        raise UsageError(
            f"expected an iterable of batches, got a {type(batches).__name__}",
            layer="data",
            remedy="write [(x, y)] for one batch of inputs and labels, or torch.utils.data.TensorDataset(x, y) for "
            "single samples",
        )


def batches_of(batches: Any, epoch: int) -> Iterable[Any]:
    """Return the batches of one epoch, counted from 0."""
    if callable(getattr(batches, "epoch", None)):
        return batches.epoch(epoch)
    for sampler in (getattr(batches, "sampler", None), getattr(batches, "batch_sampler", None)):
        set_epoch = getattr(sampler, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)
    return batches


def size_of(batch: Any) -> int:
    """Return the number of samples in a batch: the length of its first tensor, or 1 if it has none."""
    if _is_pair(batch) and batch[0].dim():
        return len(batch[0])
    leaves = pytree.tree_leaves(batch)
    return next((len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()), 1)


def is_unlabelled(batch: Any) -> bool:
    """Return whether a batch is x or (x,), without labels."""
    return isinstance(batch, Tensor) or (isinstance(batch, tuple | list) and len(batch) == 1)


def inputs_of(batch: Any) -> Any:
    """Return x of a batch x, (x,) or (x, y)."""
    return batch[0] if isinstance(batch, tuple | list) else batch


def to_device(batch: Any, device: torch.device) -> Any:
    """Return the batch on a device, with tensors instead of numpy arrays."""
    if _is_pair(batch):  # the usual batch, without the overhead of a tree
        return tuple(one.to(device, non_blocking=True) for one in batch)

    def moved(leaf: Any) -> Any:
        leaf = torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf
        return leaf.to(device, non_blocking=True) if isinstance(leaf, Tensor) else leaf

    return pytree.tree_map(moved, batch)


def _is_pair(batch: Any) -> bool:
    """Return whether a batch is a plain tuple of two tensors."""
    return type(batch) is tuple and len(batch) == 2 and all(isinstance(one, Tensor) for one in batch)


def _correct(scores: Tensor, y: Tensor, top5: bool) -> list[Tensor]:
    """Return how many labels have the highest score, and one of the five highest; nothing for other targets."""
    if scores.dim() != 2 or y.dim() != 1 or y.is_floating_point():
        return []
    correct = [(scores.argmax(1) == y).sum()]
    if top5 and scores.shape[1] > 5:
        correct.append((scores.topk(5, 1).indices == y[:, None]).sum())
    return correct


def _shaped_like(y: Tensor, outputs: Tensor) -> Tensor:
    """Return targets in the shape of the outputs: torch would broadcast (n,) over (n, 1) and average wrong values."""
    if y.shape != outputs.shape and y.squeeze(-1).shape != outputs.squeeze(-1).shape:
        raise SecateurError(
            f"the outputs have shape {tuple(outputs.shape)}, the targets {tuple(y.shape)}",
            layer="data",
            remedy="pass targets in the shape of the outputs",
        )
    return y.view_as(outputs).to(outputs.dtype)


def _scalar(loss: Any) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise UsageError(
            f"expected the mean loss of the batch from step, got {found}", remedy="return a tensor with one number"
        )
    return loss.squeeze() if loss.dim() else loss
