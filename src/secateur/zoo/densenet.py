"""Densely connected networks for 32x32 images (Huang et al. 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d


class Layer(nn.Module):
    """Batch norm, ReLU and a 3x3 convolution; its output is concatenated to its input."""

    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(before)
        self.conv = nn.Conv2d(before, growth, 3, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(torch.relu(self.bn(x)))], 1)


class BottleneckLayer(nn.Module):
    """A `Layer` with a 1x1 convolution to four times the growth before it."""

    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(before)
        self.conv1 = nn.Conv2d(before, 4 * growth, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(torch.relu(self.bn1(x)))
        return torch.cat([x, self.conv2(torch.relu(self.bn2(y)))], 1)


class Transition(nn.Module):
    """Batch norm, ReLU and a 1x1 convolution between two blocks, with pooling to half the resolution."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(before)
        self.conv = nn.Conv2d(before, after, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return avg_pool2d(self.conv(torch.relu(self.bn(x))), 2)


class DenseNetCifar(nn.Module):
    """Three dense blocks, in which every layer consumes the outputs of all layers before it.

    >>> DenseNetCifar(22)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])

    Args:
        depth: 3n + 4, or 6n + 4 if compact.
        growth: channels that each layer produces; the first convolution produces twice as many.
        classes: number of class scores.
        compact: the BC form of the paper, with bottlenecks (so half as many layers in each block) and transitions that
            halve the channels. DenseNet22 has 290,986 parameters without it and 71,686 with it.
    """

    input_shape = (3, 32, 32)

    def __init__(self, depth: int = 22, growth: int = 12, classes: int = 10, compact: bool = False) -> None:
        super().__init__()
        if depth % (6 if compact else 3) != (4 if compact else 1):
            raise ValueError(f"depth is {depth}; use {'6n' if compact else '3n'} + 4, such as 22 or 40")
        kind = BottleneckLayer if compact else Layer
        width = 2 * growth
        parts: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False)]
        for block in range(3):
            if block:
                after = width // 2 if compact else width
                parts.append(Transition(width, after))
                width = after
            for _ in range((depth - 4) // (6 if compact else 3)):
                parts.append(kind(width, growth))
                width += growth
        self.features = nn.Sequential(*parts)
        self.bn = nn.BatchNorm2d(width)
        self.linear = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the class scores of a batch of images."""
        return self.linear(torch.relu(self.bn(self.features(x))).mean((2, 3)))
