"""Blocks around norms, gates, bare parameters and arithmetic."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from support.networks.parts import (
    ACTIVATIONS,
    INSTANCE_NORM,
    Shape,
    block,
    conv,
    conv_norm,
    even,
    over_space,
    per_channel,
)


@block("instance_norm")
class WithInstanceNorm(nn.Module):
    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.conv = conv(shape, width)
        self.norm = INSTANCE_NORM[len(shape) - 1](width, affine=option % 2 == 0, track_running_stats=option % 4 == 3)
        self.act = ACTIVATIONS[option]()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))


@block("group_norm")
class WithGroupNorm(nn.Module):
    """GroupNorm with one group, with two, with pairs of channels, or with single channels."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        width = even(max(width, 4))
        groups = (1, 2, width // 2, width)[option % 4]
        self.conv = conv(shape, width)
        self.norm = nn.GroupNorm(groups, width, affine=option < 6)
        self.last = conv((width, *shape[1:]), 2 + option)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.mish(self.norm(self.conv(x))))


@block("channels_last")
class ChannelsLast(nn.Module):
    """ConvNeXt's block: depthwise, LayerNorm and MLP with the channels last, layer scale, residual."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        channels = shape[0]
        self.deep = conv(shape, channels, groups=channels)
        self.norm = nn.LayerNorm(channels, elementwise_affine=option < 6)
        self.wide, self.narrow = nn.Linear(channels, 2 * width), nn.Linear(2 * width, channels)
        self.gamma = nn.Parameter(torch.ones(channels)) if option % 2 else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.deep(x).movedim(1, -1))
        y = self.narrow(F.gelu(self.wide(y)))
        if self.gamma is not None:
            y = self.gamma * y
        return x + y.movedim(-1, 1)


@block("layer_norm")
class WithLayerNorm(nn.Module):
    """LayerNorm over the channels, or over channels and space at once."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.conv = conv(shape, width)
        self.whole = option % 2 == 0
        self.norm = nn.LayerNorm([width, *shape[1:]] if self.whole else width)
        self.last = conv_norm((width, *shape[1:]), 2 + option, option)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        y = self.norm(y) if self.whole else self.norm(y.transpose(1, -1)).transpose(1, -1)
        return self.last(y)


@block("prelu")
class WithPReLU(nn.Module):
    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.conv = conv(shape, width)
        self.act = nn.PReLU(1 if option % 3 == 0 else width)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.conv(x))


@block("squeeze_excite")
class SqueezeExcite(nn.Module):
    """A gate for each channel, by 1x1 convolutions or by linear layers and a view."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.stem = conv_norm(shape, width, option) if option < 6 else nn.Identity()
        width = width if option < 6 else shape[0]
        squeezed = 2 + option % 3
        self.by_linear, self.hard_coded = option % 2 == 0, option % 4 == 0
        self.width = width
        layer = (lambda a, b: nn.Linear(a, b)) if self.by_linear else (lambda a, b: conv((a, *shape[1:]), b, kernel=1))
        self.squeeze, self.excite = layer(width, squeezed), layer(squeezed, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        ones = (1,) * (x.dim() - 2)
        pooled = x.mean(over_space(x), keepdim=True)
        if self.by_linear:
            gate = self.excite(F.elu(self.squeeze(pooled.flatten(1))))
            gate = gate.view(-1, self.width if self.hard_coded else x.shape[1], *ones)
        else:
            gate = self.excite(F.silu(self.squeeze(pooled)))
        return x * torch.sigmoid(gate)


@block("spatial_gate")
class SpatialGate(nn.Module):
    """CBAM's gate for each pixel: mean and maximum over the channels, a convolution, a sigmoid."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.stem = conv_norm(shape, width, option) if option % 2 else nn.Identity()
        self.last = conv((width if option % 2 else shape[0], *shape[1:]), 2 + option)
        self.conv = conv((2, *shape[1:]), 1)
        self.amax = option % 4 < 2

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        top = x.amax(1, keepdim=True) if self.amax else x.max(dim=1, keepdim=True)[0]
        gate = torch.sigmoid(self.conv(torch.cat([x.mean(1, keepdim=True), top], 1)))
        return self.last(x * gate)


@block("pixel_gate")
class PixelGate(nn.Module):
    """A gate for each pixel from a convolution to one channel."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.stem = conv_norm(shape, width, option)
        self.gate = conv((width, *shape[1:]), 1, kernel=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return x * torch.sigmoid(self.gate(x))


@block("channel_attention")
class ChannelAttention(nn.Module):
    """ECA: a one-dimensional convolution along the channels computes their gates from neighbouring channels."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.stem = conv_norm(shape, width, option)
        self.along = nn.Conv1d(1, 1, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        gate = self.along(x.mean(over_space(x)).unsqueeze(1)).squeeze(1)
        return x * torch.sigmoid(gate).view(*gate.shape, *(1,) * (x.dim() - 2))


@block("layer_scale")
class LayerScale(nn.Module):
    """A bare parameter for each channel, before a residual add, and sometimes a bare bias."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.first, self.second = conv_norm(shape, width, option), conv((width, *shape[1:]), shape[0])
        self.gamma = nn.Parameter(torch.ones(per_channel(shape[0], shape)))
        self.inner = nn.Parameter(torch.ones(1, *per_channel(width, shape)))
        self.beta = nn.Parameter(torch.zeros(per_channel(shape[0], shape))) if option % 2 else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.gamma * self.second(self.first(x) * self.inner)
        return x + y if self.beta is None else x + (y + self.beta)


@block("buffer")
class Buffer(nn.Module):
    """A buffer for each channel, multiplied or subtracted."""

    scale: Tensor

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.conv = conv(shape, width)
        self.register_buffer("scale", torch.ones(per_channel(width, shape)), persistent=option % 4 != 3)
        self.subtracts = option % 2 == 1

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return F.softplus(y - self.scale if self.subtracts else y * self.scale)


@block("arithmetic")
class Arithmetic(nn.Module):
    """Constants and means between two layers: a channel of zeros does not stay zero."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.first, self.second = conv(shape, width), conv((width, *shape[1:]), 2 + option)

    def forward(self, x: Tensor) -> Tensor:
        y = (2 * self.first(x) + 1).clamp(-3, 3)
        y = y - 0.5 * y.mean(over_space(y), keepdim=True)
        return self.second(torch.exp(-y.square()))


@block("over_channels")
class OverChannels(nn.Module):
    """Ops in which every channel depends on the others: softmax, norm, cumulative sum, local response norm."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.first, self.second = conv(shape, width), conv((width, *shape[1:]), 3)
        self.option = option % 4

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        if self.option == 0:
            y = y.softmax(1)
        elif self.option == 1:
            y = F.normalize(y, dim=1)
        elif self.option == 2:
            y = y.cumsum(1)
        else:
            y = F.local_response_norm(y, 3)
        return self.second(y)


@block("functional")
class Functional(nn.Module):
    """Bare parameters used through functions: a linear map with the channels last, and a matmul."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.inward = nn.Parameter(torch.randn(width, shape[0]))
        self.bias = nn.Parameter(torch.randn(width))
        self.outward = nn.Parameter(torch.randn(width, 4))
        self.option = option

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(F.linear(x.movedim(1, -1), self.inward, self.bias if self.option % 2 else None))
        y = y @ self.outward if self.option < 4 else torch.einsum("...c,cd->...d", y, self.outward)
        return y.movedim(-1, 1)


@block("region")
class Region(nn.Module):
    """A part of forward in a context: a gate without gradients, or without autocast."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.first, self.second = conv_norm(shape, width, option), conv((width, *shape[1:]), 3)
        self.casts = option % 2 == 0

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        if self.casts:
            with torch.autocast(x.device.type, enabled=False):
                y = y * (1 + y.mean(over_space(y), keepdim=True))
        else:
            with torch.no_grad():
                gate = torch.sigmoid(y.mean(over_space(y), keepdim=True))
            y = y * gate
        return self.second(y)
