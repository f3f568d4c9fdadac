"""What a data set is: images as bytes, a target for each, and how to scale them."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from secateur.data.pictures import Pictures
from secateur.errors import UsageError

Task = Literal["classification", "regression"]
Augment = Literal["none", "pad-crop-flip"]
PARTS = ("train", "validation", "test", "train+validation")


@dataclass(frozen=True)
class Data:
    """One part of a data set.

    >>> data = dataset("cifar10", "validation")
    >>> len(data), data.images.shape
    (5000, torch.Size([5000, 3, 32, 32]))
    """

    images: Tensor | Pictures  # bytes [n, channels, height, width], in memory or read when asked for
    targets: Tensor  # int64 classes, or float32 numbers to be predicted
    mean: tuple[float, ...]  # one for each channel, of pixels from 0 to 1
    std: tuple[float, ...]
    classes: tuple[str, ...] = ()  # their names; none for a regression
    task: Task = "classification"
    augment: Augment = "none"  # what is usual for training on it

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, chosen: Tensor) -> Data:
        """Give only the images at these places, in this order.

        >>> data.take(torch.arange(256))
        """
        images = self.images[chosen] if isinstance(self.images, Tensor) else self.images.take(chosen)
        return replace(self, images=images, targets=self.targets[chosen])

    def scaled(self, mean: tuple[float, ...], std: tuple[float, ...]) -> Data:
        """Give the same with another scale, such as trained weights may ask for.

        >>> data.scaled((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        """
        channels = self.images.shape[1]
        if not len(mean) == len(std) == channels or min(std) <= 0:
            raise UsageError(
                f"mean {mean} and std {std} do not fit images of {channels} channels",
                remedy="give one number for each channel, and a std above 0",
            )
        return replace(self, mean=mean, std=std)

    def normalise(self, images: Tensor) -> Tensor:
        """Turn bytes [n, channels, height, width] into the floats that a network reads.

        >>> data.normalise(data.images[:8]).dtype
        torch.float32
        """
        mean, std = (torch.tensor(v, device=images.device).view(-1, 1, 1) for v in (self.mean, self.std))
        return images.float().div(255).sub_(mean).div_(std)

    def inputs(self, chosen: Tensor) -> Tensor:
        """Give the images at these places as a network reads them.

        >>> model(data.inputs(torch.arange(64)))
        """
        return self.normalise(self.images[chosen])


def data_root(root: str | Path | None = None) -> Path:
    """Give the folder that data sets lie in: the one named, else SECATEUR_DATA, else one in the user's cache.

    >>> data_root("data")
    PosixPath('data')
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root or os.environ.get("SECATEUR_DATA") or Path(base) / "secateur" / "data")


def split(count: int, part: str, seed: int) -> Tensor:
    """Give the places of a part in a training set that came in one piece.

    >>> len(split(50_000, "validation", seed=0))
    5000

    `torch.randperm(count)` by a generator with the seed: its first tenth (rounded down) is for validation, the rest,
    in that order, for training. Both together are everything in the order of the files.
    """
    if part == "train+validation":
        return torch.arange(count)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[: count // 10] if part == "validation" else order[count // 10 :]
