"""How good a network is on data: loss and share of right answers, in one process or over many."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils import _pytree as pytree

from secateur.errors import SecateurError, UsageError
from secateur.processes import sum_over_all
from secateur.program import mode, unwrap
from secateur.training import Loss

Step = Callable[[nn.Module, Any], Tensor]
AT_MOST = 64  # batches whose losses may wait to be looked at


@dataclass(frozen=True)
class Evaluation:
    """Means over so many points; the shares of right answers only where there are classes, top5 for more than five."""

    points: int
    loss: float
    top1: float | None = None
    top5: float | None = None


def evaluate(
    model: nn.Module, batches: Iterable[Any], *, loss: Loss = "cross-entropy", step: Step | None = None
) -> Evaluation:
    """The mean loss over all points and the share of right answers, in evaluation mode; the model stays as it was.

    >>> evaluate(model, [(images, labels)])
    Evaluation(points=10000, loss=0.031, top1=0.991, top5=1.0)

    batches: pairs (x, y), or whatever `step` takes.
    step: `step(model, batch)` gives the mean loss of a batch, as for `train`; then there are no shares.

    Under `torch.distributed` every process gives its own part of the data, and all get the result of the whole.
    """
    if loss not in get_args(Loss):
        raise UsageError(f"loss is {loss!r}", remedy=f"give {' or '.join(map(repr, get_args(Loss)))}")
    check_batches(batches)
    inner = unwrap(model)
    device = device_of(inner)
    tally = Tally(device)
    with mode(inner, False), torch.no_grad():
        for batch in batches_of(batches, 0):
            batch = to_device(batch, device)
            if points := size_of(batch):  # a part of the last batch may be empty
                tally.add(points, *judge(inner, batch, loss, step=step, top5=True))
    return tally.result()


def judge(
    model: nn.Module, batch: Any, loss: Loss, *, step: Step | None = None, smoothing: float = 0.0, top5: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """The loss of a batch, and how many points have their class first, and among the first five."""
    if step is not None:
        return _checked(step(model, batch)), []
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise UsageError(
            "a batch is no pair (x, y)", layer="data", remedy="give step=: a function (model, batch) -> loss"
        )
    x, y = batch
    scores = model(x)
    if not isinstance(scores, Tensor):
        raise UsageError(
            f"the network gives a {type(scores).__name__}, no tensor",
            layer=type(unwrap(model)).__name__,
            remedy="give step=: a function (model, batch) -> loss",
        )
    if loss == "mse":
        return mse_loss(scores, _alike(y, scores)), []
    return cross_entropy(scores, y, label_smoothing=smoothing), _right(scores.detach(), y, top5)


class Tally:
    """Sums over batches. Losses wait on their device and are fetched together, since each look stops a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sums: list[float] = []
        self._waiting: list[tuple[int, Tensor]] = []
        self.batches = 0
        self.points = 0
        self.broken: int | None = None  # the first batch, from 1, whose loss is NaN or infinite

    @property
    def loss(self) -> float:
        """The mean so far, of this process."""
        return self._sums[0] / self.points if self.points else math.nan

    def add(self, points: int, loss: Tensor, right: list[Tensor]) -> None:
        """Count one more batch."""
        self._waiting.append((points, torch.stack([loss.detach().double(), *(one.double() for one in right)])))
        if len(self._waiting) >= AT_MOST:
            self.look()

    def look(self) -> None:
        """Fetch what waits."""
        rows = torch.stack([row for _, row in self._waiting]).tolist() if self._waiting else []
        for (points, _), (loss, *right) in zip(self._waiting, rows, strict=True):
            self.batches += 1
            self.points += points
            if self.broken is None and not math.isfinite(loss):
                self.broken = self.batches
            row = [loss * points, *right]
            self._sums = [a + b for a, b in zip(self._sums, row, strict=True)] if self._sums else row
        self._waiting = []

    def result(self) -> Evaluation:
        """The means over all processes."""
        self.look()
        width = len(self._sums)
        sums = self._sums + [0.0] * (3 - width)
        *totals, points, columns = sum_over_all([*sums, self.points, width * self.points], self._device)
        if not points:
            raise SecateurError(
                "there is no data: not one batch",
                layer="data",
                remedy="give at least one batch; a generator has none left after one epoch",
            )
        means = [total / points for total in totals][: round(columns / points)]
        return Evaluation(int(points), *means)


def check_batches(batches: Any) -> None:
    """Refuse what are no batches; one batch alone, (x, y), is easily given for them."""
    has_epochs = callable(getattr(batches, "epoch", None))
    if not has_epochs and (isinstance(batches, Tensor | tuple | dict) or not isinstance(batches, Iterable)):
        raise UsageError(
            f"the batches are a {type(batches).__name__}",
            layer="data",
            remedy="give an iterable of batches: [(x, y)] is one batch of inputs and labels",
        )


def batches_of(batches: Any, epoch: int) -> Iterable[Any]:
    """The batches of one epoch, counted from 0."""
    if callable(getattr(batches, "epoch", None)):
        return batches.epoch(epoch)
    for sampler in (getattr(batches, "sampler", None), getattr(batches, "batch_sampler", None)):
        set_epoch = getattr(sampler, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)
    return batches


def size_of(batch: Any) -> int:
    """How many points a batch has: the length of its first tensor, or one if there is none."""
    leaves = pytree.tree_leaves(batch)
    return next((len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()), 1)


def device_of(model: nn.Module) -> torch.device:
    """Where the network is."""
    return next((tensor.device for tensor in [*model.parameters(), *model.buffers()]), torch.device("cpu"))


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch where the network is."""
    return pytree.tree_map(lambda leaf: leaf.to(device, non_blocking=True) if isinstance(leaf, Tensor) else leaf, batch)


def _right(scores: Tensor, y: Tensor, top5: bool) -> list[Tensor]:
    """How many points have their label first, and among the first five; nothing where labels are no class numbers."""
    if scores.dim() != 2 or y.dim() != 1 or y.is_floating_point():
        return []
    right = [(scores.argmax(1) == y).sum()]
    if top5 and scores.shape[1] > 5:
        right.append((scores.topk(5, 1).indices == y[:, None]).sum())
    return right


def _alike(y: Tensor, outputs: Tensor) -> Tensor:
    """Targets in the shape of the outputs: torch would spread (n,) over (n, 1) and average the wrong differences."""
    if y.shape != outputs.shape and y.squeeze(-1).shape != outputs.squeeze(-1).shape:
        raise SecateurError(
            f"the network gives {tuple(outputs.shape)}, the targets are {tuple(y.shape)}",
            layer="data",
            remedy="give targets of the same shape",
        )
    return y.view_as(outputs).to(outputs.dtype)


def _checked(loss: Any) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise UsageError(
            f"the step gives {found}", remedy="give back the mean loss of the batch, one number in a tensor"
        )
    return loss.squeeze() if loss.dim() else loss
