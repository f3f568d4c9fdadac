"""What the blocks of random networks are made of, and the table that they are entered in."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

Shape = tuple[int, ...]
Block = Callable[[Shape, int, int], nn.Module]

BLOCKS: dict[str, type[nn.Module]] = {}
DIMS: dict[str, tuple[int, ...]] = {}

CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
BATCH_NORM = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
INSTANCE_NORM = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
MAX_POOL = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
AVG_POOL = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
ADAPTIVE = {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}
DROPOUT = {1: nn.Dropout1d, 2: nn.Dropout2d, 3: nn.Dropout3d}
ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.SiLU, nn.GELU, nn.Sigmoid, nn.Hardswish, nn.Tanh, nn.Softplus)


def block(kind: str, dims: tuple[int, ...] = (1, 2, 3)) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Enter a block into the table, with the numbers of spatial dimensions that it supports."""

    def enter(cls: type[nn.Module]) -> type[nn.Module]:
        BLOCKS[kind], DIMS[kind] = cls, dims
        return cls

    return enter


def even(width: int) -> int:
    return width + width % 2


def conv(shape: Shape, out: int, kernel: int = 3, stride: int = 1, groups: int = 1, bias: bool = True) -> nn.Module:
    """Return a convolution of the dimension of a shape that keeps the size (at stride 1)."""
    return CONV[len(shape) - 1](shape[0], out, kernel, stride, kernel // 2, groups=groups, bias=bias)


def conv_norm(shape: Shape, out: int, option: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """Return a convolution, a batch norm and an activation."""
    norm = BATCH_NORM[len(shape) - 1](out)
    return nn.Sequential(conv(shape, out, kernel, stride, bias=option % 2 == 0), norm, ACTIVATIONS[option]())


def strided(shape: Shape, option: int) -> int:
    """Return stride 2 for half of the options if the map is large enough, else 1."""
    return 2 if option % 2 and min(shape[1:]) >= 4 else 1


def over_space(x: Tensor) -> list[int]:
    return list(range(2, x.dim()))


def per_channel(channels: int, shape: Shape) -> tuple[int, ...]:
    return (channels, *(1 for _ in shape[1:]))
