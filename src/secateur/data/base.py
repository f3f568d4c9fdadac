"""A data set: images as bytes, a target for each, and their normalisation."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from secateur.data.images import ImageFiles
from secateur.errors import UsageError

Task = Literal["classification", "regression"]
Augment = Literal["none", "pad-crop-flip", "resized-crop-flip"]
PARTS = ("train", "validation", "test", "train+validation")


@dataclass(frozen=True)
class Data:
    """One part of a data set.

    >>> data = dataset("cifar10", "validation")
    >>> len(data), data.images.shape
    (5000, torch.Size([5000, 3, 32, 32]))

    Attributes:
        images: bytes [n, channels, height, width], in memory or read when they are indexed.
        targets: int64 classes, or float32 values of a regression.
        mean: of each channel, for pixels from 0 to 1.
        std: of each channel.
        classes: names of the classes; empty for a regression.
        task: "classification" or "regression".
        augment: the usual augmentation for training on this data.
    """

    images: Tensor | ImageFiles
    targets: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...] = ()
    task: Task = "classification"
    augment: Augment = "none"

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, chosen: Tensor) -> Data:
        """Return the data at these indices, in this order."""
        images = self.images[chosen] if isinstance(self.images, Tensor) else self.images.take(chosen)
        return replace(self, images=images, targets=self.targets[chosen])

    def scaled(self, mean: tuple[float, ...], std: tuple[float, ...]) -> Data:
        """Return the same data with another normalisation, such as trained weights may need.

        >>> data.scaled((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        """
        channels = self.images.shape[1]
        if not len(mean) == len(std) == channels or min(std) <= 0:
            raise UsageError(
                f"mean {mean} and std {std} do not fit images of {channels} channels",
                remedy="pass one number for each channel, and a std above 0",
            )
        return replace(self, mean=mean, std=std)

    def normalise(self, images: Tensor) -> Tensor:
        """Return bytes [n, channels, height, width] as the floats that a network takes."""
        mean, std = (torch.tensor(v, device=images.device).view(-1, 1, 1) for v in (self.mean, self.std))
        return torch.div(images, 255).sub_(mean).div_(std)

    def inputs(self, chosen: Tensor) -> Tensor:
        """Return the images at these indices as inputs of a network.

        >>> model(data.inputs(torch.arange(64)))
        """
        return self.normalise(self.images[chosen])


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder of the data sets: the given one, else SECATEUR_DATA, else one in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root or os.environ.get("SECATEUR_DATA") or Path(base) / "secateur" / "data")


def split(count: int, part: str, seed: int) -> Tensor:
    """Return the indices of a part of a training set that has no validation part.

    >>> len(split(50_000, "validation", seed=0))
    5000

    A random permutation by the seed: its first tenth (rounded down) is for validation, the rest for training, in that
    order. "train+validation" is everything in the order of the files.
    """
    if part == "train+validation":
        return torch.arange(count)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[: count // 10] if part == "validation" else order[count // 10 :]
