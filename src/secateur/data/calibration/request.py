"""A request for calibration data, and the resulting batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from secateur._torch import pytree
from secateur.errors import SecateurError, UsageError

FORMS = (
    "name calibration data as a folder of images, a .csv file of paths and labels, "
    "a .npy, .npz, .safetensors, .pt or .pth file, path/to/file.py:factory or embedded:digits"
)
LABELS = ("y", "labels")
Scale = float | Sequence[float]


@dataclass(frozen=True)
class Calibration:
    """Batches of calibration data, which can be passed wherever data is needed.

    >>> for batch in read_batches("photos", shape=(3, 224, 224)):
    ...     model(batch)
    """

    batches: list[Any]  # each x, (x, y), or whatever a user's factory returned
    samples: int
    labelled: bool
    origin: str  # the source that the user named, and how it was normalised
    unused: list[Any] = field(default_factory=list)  # further batches that are not calibration data

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


@dataclass(frozen=True)
class Request:
    """The wanted shape, number, batches and normalisation of samples, checked."""

    shape: tuple[int, ...]
    samples: int
    batch: int
    scale: tuple[Sequence[float], Sequence[float]] | None  # mean and standard deviation
    seed: int
    unused: int = 0  # further samples to set aside, where there are more

    def choose(self, total: int) -> list[int]:
        """Return the indices of the samples to read: all in their order, or a random choice, those to use first."""
        if total <= self.samples:
            return list(range(total))
        order = torch.randperm(total, generator=torch.Generator().manual_seed(self.seed))
        return order[: self.samples + self.unused].tolist()

    def normalised(self, x: Tensor) -> Tensor:
        """Return inputs with the mean subtracted and divided by the standard deviation, if these were given."""
        if self.scale is None:
            return x
        mean, std = (torch.tensor(values).view(-1, *[1] * (x.dim() - 2)) for values in self.scale)
        return (x - mean) / std

    def batches(self, x: Tensor, y: Tensor | None, origin: str) -> Calibration:
        """Return inputs, with their labels if there are any, in batches."""

        def split(part: slice) -> list[Any]:
            if not len(x[part]):
                return []
            inputs = x[part].split(self.batch)
            return list(inputs) if y is None else list(zip(inputs, y[part].split(self.batch)))

        used, rest = split(slice(self.samples)), split(slice(self.samples, None))
        return Calibration(used, min(len(x), self.samples), y is not None, origin, rest)

    @property
    def note(self) -> str:
        """The normalisation in words, to be added to the origin."""
        return f" (scaled by mean {list(self.scale[0])} and std {list(self.scale[1])})" if self.scale else ""


def scaling(mean: Scale | None, std: Scale | None, channels: int) -> tuple[list[float], list[float]] | None:
    """Return one mean and one standard deviation for each channel or for all, or None if neither was given."""
    if mean is None and std is None:
        return None
    if mean is None or std is None:
        raise UsageError("mean and std belong together", remedy="pass both; mean 0 and std 1 change nothing")
    means, stds = ([float(v) for v in (value if isinstance(value, Sequence) else [value])] for value in (mean, std))
    for name, values in (("mean", means), ("std", stds)):
        if len(values) not in (1, channels):
            raise UsageError(
                f"{name} has {len(values)} numbers, the input has {channels} channels",
                remedy=f"pass one number or {channels}",
            )
        if not all(math.isfinite(v) and (v > 0 or name == "mean") for v in values):
            raise UsageError(f"{name} is {values}", remedy="use finite numbers, and a std above 0")
    return means, stds


def tensors_of(batch: Any) -> list[Tensor]:
    """Return the tensors in a batch that have samples."""
    return [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim()]


def check_finite(batch: Any, numbers: Sequence[int], where: str) -> None:
    """Refuse NaN and infinite values, and name the samples that have them by their numbers."""
    finite = torch.ones(len(numbers), dtype=torch.bool)
    for tensor in tensors_of(batch):
        if tensor.is_floating_point() and len(tensor) == len(numbers):
            finite &= torch.isfinite(tensor.detach().cpu()).reshape(len(numbers), -1).all(1)
    if not finite.all():
        named = [str(number) for number, fine in zip(numbers, finite.tolist()) if not fine]
        listed = ", ".join(named[:5]) + (f" and {len(named) - 5} more" if len(named) > 5 else "")
        raise SecateurError(
            f"{where} has NaN or infinite values in sample{'s' if len(named) > 1 else ''} {listed}",
            remedy="remove those samples (the first is number 0)",
        )


def wrong_shape(where: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> SecateurError:
    """Return the error for samples of another shape than the network's input."""
    return SecateurError(
        f"one sample of {where} has shape {found}, the network's input has {wanted}",
        remedy="store the samples in the input's shape, or pass the shape that they have",
    )
