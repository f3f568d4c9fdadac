"""Blocks around a convolution: plain, transposed, grouped, with computed weights; pooling and resizing."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from support.networks.parts import (
    ACTIVATIONS,
    ADAPTIVE,
    AVG_POOL,
    BATCH_NORM,
    CONV,
    DROPOUT,
    MAX_POOL,
    TRANSPOSED,
    Shape,
    block,
    conv,
    conv_norm,
    strided,
)


@block("plain")
class Plain(nn.Sequential):
    """conv, BatchNorm (with or without affine, with or without running statistics), activation."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        norm = BATCH_NORM[len(shape) - 1](width, affine=option % 4 != 1, track_running_stats=option % 4 != 2)
        layer = conv(shape, width, kernel=3 if option < 6 else 1, stride=strided(shape, option), bias=option % 2 == 0)
        super().__init__(layer, norm, ACTIVATIONS[option]())


@block("bare")
class Bare(nn.Module):
    """Convolution without a norm: dilated, circularly padded, or with padding="same"."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        cls = CONV[len(shape) - 1]
        if option % 3 == 0 or min(shape[1:]) < 4:
            self.conv = cls(shape[0], width, 3, padding="same", bias=option % 2 == 0)
        elif option % 3 == 1:
            self.conv = cls(shape[0], width, 3, padding=2, dilation=2)
        else:
            self.conv = cls(shape[0], width, 3, padding=1, padding_mode="circular")
        self.act = ACTIVATIONS[option]()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.conv(x))


@block("decoder")
class Decoder(nn.Module):
    """Linear, view as a map, transposed convolution."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        dims = len(shape) - 1
        self.pool = ADAPTIVE[dims](1)
        self.side = 2 + option % 2
        self.space = (self.side,) * dims
        self.width = width if option < 4 else -1  # hard-coded, or left to view
        self.linear = nn.Linear(shape[0], width * self.side**dims)
        self.up = TRANSPOSED[dims](width, 4, 4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.elu(self.linear(self.pool(x).flatten(1)))
        return self.up(y.view(x.shape[0], self.width, *self.space))


@block("transposed")
class Transposed(nn.Module):
    """Transposed convolution, grouped too."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        dims = len(shape) - 1
        groups = 1 + option % 3
        width = groups * (1 + width // 3)
        self.first = conv_norm(shape, width, option)
        up = max(shape[1:]) <= 6
        out = groups * (1 + option // 2)
        self.up = TRANSPOSED[dims](width, out, 4 if up else 3, 2 if up else 1, 1, groups=groups, bias=option % 2 == 0)
        self.norm = BATCH_NORM[dims](out)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu6(self.norm(self.up(self.first(x))) + 1)


@block("grouped")
class Grouped(nn.Module):
    """Grouped convolution: few large groups or many small ones, as many filters out as in or more."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        groups = (2, 3, 4, max(2, width // 2))[option % 4]
        each = (1, 2, 3)[width % 3]
        width = groups * each
        self.first = conv_norm(shape, width, option)
        self.second = conv((width, *shape[1:]), width * (1 + option // 4), groups=groups)
        self.norm = BATCH_NORM[len(shape) - 1](width * (1 + option // 4))

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.norm(self.second(self.first(x))))


@block("depthwise")
class Depthwise(nn.Module):
    """An inverted residual: widen, depthwise, narrow; directly on the input for some options."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.wide = conv_norm(shape, width, option, kernel=1) if option < 6 else nn.Identity()
        width = width if option < 6 else shape[0]
        self.deep = conv((width, *shape[1:]), width, stride=strided(shape, option), groups=width)
        self.norm = BATCH_NORM[len(shape) - 1](width)
        self.narrow = conv((width, *shape[1:]), 2 + option, kernel=1) if option % 3 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(F.hardswish(self.norm(self.deep(self.wide(x)))))


@block("multiplier")
class Multiplier(nn.Module):
    """Depthwise with more filters out than in."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        times = 2 + option % 2
        width = 1 + width // 2 if option < 6 else shape[0]
        self.first = conv_norm(shape, width, option) if option < 6 else nn.Identity()
        self.deep = conv((width, *shape[1:]), width * times, groups=width)
        self.last = conv((width * times, *shape[1:]), 2 + option, kernel=1) if option % 2 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.deep(self.first(x))))


@block("frozen")
class Frozen(nn.Module):
    """A convolution that does not learn, or a norm that does not."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.conv = conv(shape, width)
        self.norm = BATCH_NORM[len(shape) - 1](width)
        (self.conv if option % 2 else self.norm).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(self.norm(self.conv(x)))


@block("weight_norm")
class WeightNorm(nn.Module):
    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.conv = nn.utils.parametrizations.weight_norm(conv(shape, width))
        self.norm = BATCH_NORM[len(shape) - 1](width)
        self.last = conv((width, *shape[1:]), 2 + option)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.norm(self.conv(x))))


class StandardConv2d(nn.Conv2d):
    """A convolution whose weights are standardised filter by filter."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        var, mean = torch.var_mean(weight, dim=[1, 2, 3], keepdim=True, correction=0)
        return F.conv2d(x, (weight - mean) / torch.sqrt(var + 1e-6), self.bias, self.stride, self.padding)


@block("standardised", dims=(2,))
class Standardised(nn.Module):
    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.first = StandardConv2d(shape[0], width, 3, padding=1)
        self.second = StandardConv2d(width, 2 + option, 3, padding=1) if option % 2 else conv((width, 1, 1), 2 + option)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.silu(self.first(x)))


@block("pool")
class Pool(nn.Module):
    """Maximum, average or adaptive pooling."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        dims = len(shape) - 1
        if min(shape[1:]) < 4:
            self.pool: nn.Module = nn.Identity()
        elif option % 3 == 0:
            self.pool = MAX_POOL[dims](3, 2, 1)
        else:
            self.pool = AVG_POOL[dims](2) if option % 3 == 1 else ADAPTIVE[dims](3)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(x)


@block("upsample")
class Upsample(nn.Module):
    """Nearest neighbour, as a layer or as a function; back to the input's size for an hourglass."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.down = conv_norm(shape, width, option, stride=2)
        self.up = conv((width, *shape[1:]), shape[0])
        self.layer = nn.Upsample(scale_factor=2, mode="nearest")
        self.option = option

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(x)
        if self.option % 2:
            return self.up(self.layer(y))
        return x + self.up(F.interpolate(y, size=x.shape[2:], mode="nearest"))


@block("dropout")
class WithDropout(nn.Module):
    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.conv = conv(shape, width)
        self.drop = nn.Dropout(0.2) if option % 2 else DROPOUT[len(shape) - 1](0.2)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(F.gelu(self.conv(x)))
