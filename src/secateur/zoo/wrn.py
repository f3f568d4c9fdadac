"""Wide residual networks for 32x32 images (Zagoruyko and Komodakis 2016), without dropout."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class WideBlock(nn.Module):
    """Two 3x3 convolutions, each after its batch norm and ReLU, and a shortcut.

    Where the width changes, the shortcut is a 1x1 convolution of the output of the first ReLU; elsewhere the input.
    """

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(before)
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(before, after, 1, stride, bias=False) if before != after else None

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(y)
        return self.conv2(torch.relu(self.bn2(self.conv1(y)))) + shortcut


class WideResNet(nn.Module):
    """6n + 4 layers, with n blocks in each of three stages of 16, 32 and 64 times `widen` channels.

    >>> WideResNet(16, widen=8)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])

    Depth 16 widened 8 times has 10,961,370 parameters.

    Args:
        depth: 6n + 4, such as 16, 22 or 28.
        widen: factor of the widths.
        classes: number of class scores.
    """

    input_shape = (3, 32, 32)

    def __init__(self, depth: int = 16, widen: int = 8, classes: int = 10) -> None:
        super().__init__()
        if depth % 6 != 4:
            raise ValueError(f"depth is {depth}; use 6n + 4, such as 16, 22 or 28")
        blocks: list[nn.Module] = []
        width = 16
        for stage in range(3):
            for number in range(depth // 6):
                after = (16 << stage) * widen
                blocks.append(WideBlock(width, after, 2 if stage and not number else 1))
                width = after
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.blocks = nn.Sequential(*blocks)
        self.bn = nn.BatchNorm2d(width)
        self.linear = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the class scores of a batch of images."""
        x = torch.relu(self.bn(self.blocks(self.conv1(x))))
        return self.linear(x.mean((2, 3)))
