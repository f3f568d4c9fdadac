"""Residual networks for 32x32 images (He et al. 2016): three stages of 16, 32 and 64 channels."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Shortcut = Literal["A", "B"]


class PadShortcut(nn.Module):
    """Option A, without parameters: every second pixel, padded with channels of zeros on both sides."""

    def __init__(self, added: int) -> None:
        super().__init__()
        self.added = added

    def forward(self, x: Tensor) -> Tensor:
        side = self.added // 2
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, side, self.added - side))


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, before: int, after: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.shortcut: nn.Module = nn.Sequential()
        if before != after and shortcut == "A":
            self.shortcut = PadShortcut(after - before)
        elif before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNetCifar(nn.Module):
    """6n + 2 layers, with n blocks in each of three stages.

    >>> ResNetCifar(20)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])

    Args:
        depth: 6n + 2, such as 20, 56 or 110.
        classes: number of class scores.
        shortcut: option "A" (padding) or "B" (1x1 convolution) of the paper, where the width changes.
    """

    input_shape = (3, 32, 32)

    def __init__(self, depth: int, classes: int = 10, shortcut: Shortcut = "A") -> None:
        super().__init__()
        if depth % 6 != 2:
            raise ValueError(f"depth is {depth}; use 6n + 2, such as 20, 56 or 110")
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(depth // 6, 16, 16, shortcut)
        self.layer2 = _stage(depth // 6, 16, 32, shortcut)
        self.layer3 = _stage(depth // 6, 32, 64, shortcut)
        self.linear = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the class scores of a batch of images."""
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


def _stage(blocks: int, before: int, after: int, shortcut: Shortcut) -> nn.Sequential:
    """Return blocks of one width; where it grows, the first one halves the resolution."""
    first = Block(before, after, after // before, shortcut)
    return nn.Sequential(first, *(Block(after, after, 1, shortcut) for _ in range(blocks - 1)))
