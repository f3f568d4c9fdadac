"""Batches whose order depends on the seed and the epoch alone, so that any epoch can be had again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from secateur.data.base import Data
from secateur.errors import UsageError

PADDING = 4


class Batches:
    """Pairs (x, y) of images, scaled, and their targets.

    >>> batches = Batches(data, 128, shuffle=True, augment=True, seed=0)
    >>> for epoch in range(done, 182):
    ...     for x, y in batches.epoch(epoch):
    ...         step(x, y)

    batch_size: of this process. With `shard=(rank, world)` each of `world` processes gets its part of batches that
        are together `world` times as large: they see what one process with that batch size would see. If the last
        one cannot be shared equally, the first ranks get one image more; for training, leave it out by `drop_last`.
    augment: crop and flip at random, if that is usual for the data (`data.augment`).
    device: where x and y are put; else they stay on the processor.

    Iterating over the object itself gives epoch 0. All is done in this process.
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
        self.augment = augment and data.augment == "pad-crop-flip"
        self.rank, self.world = shard
        if not 0 <= self.rank < self.world:
            raise UsageError(f"the shard is {shard}", remedy="give (rank, world) with rank from 0 to world - 1")
        if batch_size < 1 or seed < 0:
            raise UsageError(
                f"batches of {batch_size} by the seed {seed}", remedy="give at least 1, and no seed below 0"
            )
        self.together = batch_size * self.world
        self.count = len(data) // self.together if drop_last else -(-len(data) // self.together)
        if not self.count:
            raise UsageError(
                f"{len(data)} images make no batch of {self.together}", remedy="give more images, or smaller batches"
            )

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.epoch(0)

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Give the batches of one epoch, the same on every call; from batch `start` on, to resume inside it.

        >>> x, y = next(batches.epoch(7))
        """
        total = len(self.data)
        source = torch.Generator().manual_seed(_mixed(self.seed, number))
        order = torch.randperm(total, generator=source) if self.shuffle else torch.arange(total)
        moves = draw_moves(total, source) if self.augment else None
        for batch in range(start, self.count):
            all_places = torch.arange(batch * self.together, min((batch + 1) * self.together, total))
            places = all_places.tensor_split(self.world)[self.rank]
            images = self.data.images[order[places]]
            if moves is not None:
                images = crop_and_flip(images, moves.at(places))
            images, targets = images.to(self.device), self.data.targets[order[places]].to(self.device)
            yield self.data.normalise(images), targets


@dataclass(frozen=True)
class Moves:
    """How each image is cropped and whether it is flipped."""

    down: Tensor  # int64 [n], where the crop begins in the padded image
    right: Tensor
    flip: Tensor  # bool [n]

    def at(self, places: Tensor) -> Moves:
        """Give those of some images only."""
        return Moves(self.down[places], self.right[places], self.flip[places])


def draw_moves(count: int, source: torch.Generator) -> Moves:
    """Draw the random numbers for as many images.

    >>> draw_moves(128, torch.Generator().manual_seed(0)).flip.float().mean()
    """
    down, right = torch.randint(0, 2 * PADDING + 1, (2, count), generator=source)
    return Moves(down, right, torch.randint(0, 2, (count,), generator=source).bool())


def crop_and_flip(images: Tensor, moves: Moves) -> Tensor:
    """Pad each image by 4 black pixels, cut its own size out of it, and mirror it left to right or not.

    >>> crop_and_flip(images, draw_moves(len(images), generator)).shape == images.shape
    True
    """
    count, channels, height, width = images.shape
    columns = torch.arange(width).expand(count, width)
    columns = moves.right[:, None] + torch.where(moves.flip[:, None], columns.flip(1), columns)
    rows = moves.down[:, None] + torch.arange(height)
    padded = pad(images, (PADDING,) * 4)
    # One index into the flat image for each pixel of the crop; the same for all channels.
    pixels = (rows[:, :, None] * (width + 2 * PADDING) + columns[:, None, :]).view(count, 1, height * width)
    chosen = padded.flatten(2).gather(2, pixels.expand(-1, channels, -1))
    return chosen.view(count, channels, height, width)


def _mixed(seed: int, epoch: int) -> int:
    """One seed from two numbers; near ones give unlike orders."""
    return int(np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)[0]) >> 1
