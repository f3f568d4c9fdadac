"""Batches whose order depends only on the seed and the epoch, so that every epoch can be repeated."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from secateur.data.base import Augment, Data
from secateur.data.images import ImageFiles
from secateur.errors import UsageError

PADDING = 4


class Batches:
    """Batches (x, y) of normalised images and their targets.

    >>> batches = Batches(data, 128, shuffle=True, augment=True, seed=0)
    >>> for epoch in range(done, 182):
    ...     for x, y in batches.epoch(epoch):
    ...         step(x, y)

    Iterating over the object itself gives epoch 0. Everything is done in this process.

    Args:
        data: the images and targets.
        batch_size: of this process.
        shuffle: whether each epoch has a random order of its own.
        augment: crop and flip at random, as is usual for the data (`data.augment`).
        seed: of the order and the augmentation.
        device: where x and y are put; the CPU by default.
        drop_last: leave out the last batch of an epoch if it is smaller.
        shard: (rank, world): each of `world` processes gets its part of batches that are `world` times as large, so
            that together they see the batches of one process. If the last batch cannot be shared equally, the first
            ranks get one image more.
    """

    def __init__(
        self,
        data: Data,
        batch_size: int,
        *,
        shuffle: bool,
        augment: bool,
        seed: int,
        device: torch.device | str | None = None,
        drop_last: bool = False,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        self.data, self.shuffle, self.seed, self.device = data, shuffle, seed, device
        self.augment: Augment = data.augment if augment else "none"
        self.rank, self.world = shard
        if not 0 <= self.rank < self.world:
            raise UsageError(f"shard is {shard}", remedy="pass (rank, world) with rank from 0 to world - 1")
        if batch_size < 1 or seed < 0:
            raise UsageError(
                f"batch_size is {batch_size} and seed is {seed}", remedy="use a batch_size from 1 and a seed from 0 up"
            )
        self.together = batch_size * self.world
        self.count = len(data) // self.together if drop_last else -(-len(data) // self.together)
        if not self.count:
            raise UsageError(f"{len(data)} images do not fill a batch of {self.together}", remedy="use smaller batches")

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.epoch(0)

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one epoch, the same in every call; from batch `start` on, to resume inside it."""
        total = len(self.data)
        source = torch.Generator().manual_seed(_mixed(self.seed, number))
        order = torch.randperm(total, generator=source) if self.shuffle else torch.arange(total)
        moves = draw_moves(total, source) if self.augment == "pad-crop-flip" else None
        files = self.data.images if isinstance(self.data.images, ImageFiles) else None
        draws = torch.rand(5, total, generator=source) if self.augment == "resized-crop-flip" and files else None
        for batch in range(start, self.count):
            together = torch.arange(batch * self.together, min((batch + 1) * self.together, total))
            positions = together.tensor_split(self.world)[self.rank]
            chosen = order[positions]
            if files and draws is not None:
                images = files.crops(chosen, draws[:, positions])
            elif files:
                images = files[chosen]
            else:
                images = self.data.images.index_select(0, chosen)  # type: ignore[union-attr]  # faster than [chosen]
            if moves is not None:
                images = crop_and_flip(images, moves[:, positions])
            images, targets = images.to(self.device), self.data.targets[chosen].to(self.device)
            yield self.data.normalise(images), targets


def draw_moves(count: int, source: torch.Generator) -> Tensor:
    """Return random crops and flips for `count` images: int64 [3, n] of rows down, columns right, and flip or not."""
    offsets = torch.randint(0, 2 * PADDING + 1, (2, count), generator=source)
    return torch.cat([offsets, torch.randint(0, 2, (1, count), generator=source)])


def crop_and_flip(images: Tensor, moves: Tensor) -> Tensor:
    """Return the images padded by 4 black pixels, cropped to their own size and flipped left to right or not."""
    count, channels, height, width = images.shape
    down, right, flip = moves[:, :, None]
    columns = torch.arange(width).expand(count, width)
    columns = right + torch.where(flip.bool(), columns.flip(1), columns)
    rows = down + torch.arange(height)
    padded = pad(images, (PADDING,) * 4)
    # One index into the flat image for each pixel of the crop; the same for all channels.
    pixels = (rows[:, :, None] * (width + 2 * PADDING) + columns[:, None, :]).view(count, 1, height * width)
    chosen = padded.flatten(2).gather(2, pixels.expand(-1, channels, -1))
    return chosen.view(count, channels, height, width)


def _mixed(seed: int, epoch: int) -> int:
    """Return one seed from two numbers; similar numbers give unrelated seeds."""
    return int(np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)[0]) >> 1
