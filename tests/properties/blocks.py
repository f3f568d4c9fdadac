"""Blocks to compose random networks of: each a small plain module that turns (N, C, ...) into (N, C', ...).

A block is made from the shape it will see (without the batch), a width and an option; the option, 0 to 7, picks its
variant. Some read their sizes from the input, some have them written in, as people do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
    """Enter a block into the book, with the numbers of spatial dimensions it can work in."""

    def enter(cls: type[nn.Module]) -> type[nn.Module]:
        BLOCKS[kind], DIMS[kind] = cls, dims
        return cls

    return enter


def even(width: int) -> int:
    return width + width % 2


def conv(shape: Shape, out: int, kernel: int = 3, stride: int = 1, groups: int = 1, bias: bool = True) -> nn.Module:
    """A convolution of the shape's own dimension that keeps the size (at stride 1)."""
    return CONV[len(shape) - 1](shape[0], out, kernel, stride, kernel // 2, groups=groups, bias=bias)


def conv_norm(shape: Shape, out: int, option: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """Convolution, batch norm, activation."""
    norm = BATCH_NORM[len(shape) - 1](out)
    return nn.Sequential(conv(shape, out, kernel, stride, bias=option % 2 == 0), norm, ACTIVATIONS[option]())


def strided(shape: Shape, option: int) -> int:
    """Stride 2 for half of the options, where the map is large enough."""
    return 2 if option % 2 and min(shape[1:]) >= 4 else 1


def over_space(x: Tensor) -> list[int]:
    return list(range(2, x.dim()))


def per_channel(channels: int, shape: Shape) -> tuple[int, ...]:
    return (channels, *(1 for _ in shape[1:]))


@block("plain")
class Plain(nn.Sequential):
    """conv, BatchNorm (with or without affine, with or without running statistics), activation."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        norm = BATCH_NORM[len(shape) - 1](width, affine=option % 4 != 1, track_running_stats=option % 4 != 2)
        layer = conv(shape, width, kernel=3 if option < 6 else 1, stride=strided(shape, option), bias=option % 2 == 0)
        super().__init__(layer, norm, ACTIVATIONS[option]())


@block("bare")
class Bare(nn.Module):
    """Convolution without a norm: dilated, padded by reflection, or with a string for its padding."""

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


@block("residual")
class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.first = conv_norm(shape, width, option)
        self.second = conv((width, *shape[1:]), shape[0])
        self.norm = BATCH_NORM[len(shape) - 1](shape[0])
        self.act = ACTIVATIONS[(option + 1) % 8]()
        self.inplace = option % 3 == 0

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.second(self.first(x)))
        if self.inplace:
            y += x
            return self.act(y)
        return self.act(x + y)


@block("projection")
class Projection(nn.Module):
    """A residual block whose shortcut is a 1x1 convolution."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        stride = strided(shape, option)
        self.body = conv_norm(shape, width, option, stride=stride)
        self.shortcut = nn.Sequential(
            conv(shape, width, kernel=1, stride=stride, bias=False), BATCH_NORM[len(shape) - 1](width)
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(self.body(x) + self.shortcut(x))


@block("pad_shortcut", dims=(2,))
class PadShortcut(nn.Module):
    """ResNet's option A: every second pixel, and zeros for the new channels."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.before, self.after = 1 + option % 3, 1 + option // 3
        self.stride = strided(shape, option)
        self.body = conv_norm(shape, shape[0] + self.before + self.after, option, stride=self.stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))
        return self.body(x) + shortcut


@block("dense")
class Dense(nn.Module):
    """Each layer reads all the features before it."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        growth = 2 + width % 3
        self.layers = nn.ModuleList(
            conv_norm((shape[0] + i * growth, *shape[1:]), growth, (option + i) % 8) for i in range(2 + option % 2)
        )

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return torch.cat(features, 1)


@block("cascade")
class Cascade(nn.Module):
    """A chain of layers, all of them concatenated at the end (VoVNet), with or without the input; a 1x1 on top."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.first = conv_norm(shape, 3, option)
        self.second = conv_norm((3, *shape[1:]), 4, option)
        self.third = conv_norm((4, *shape[1:]), 2, option)
        self.with_input = option % 2 == 0
        self.last = conv((9 + shape[0] * self.with_input, *shape[1:]), width, kernel=1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        b = self.second(a)
        c = self.third(b)
        if self.with_input:
            return self.last(torch.cat([torch.cat([x, a], 1), torch.cat([b, c], 1)], 1))
        return self.last(torch.cat([c, a, b], 1))


@block("concat_split")
class ConcatSplit(nn.Module):
    """A concat whose parts do not line up with the split after it."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        a, b = even(width), even(2 + option % 4)
        self.a, self.b = conv(shape, a), conv_norm(shape, b, option)
        self.sizes = [2, a + b - 2] if option % 2 else [(a + b) // 2, (a + b) // 2]
        self.chunked = option % 4 == 0
        self.left = conv((self.sizes[0], *shape[1:]), 4)
        self.right = conv((self.sizes[1], *shape[1:]), 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([self.a(x), self.b(x)], 1)
        left, right = y.chunk(2, 1) if self.chunked else y.split(self.sizes, 1)
        return torch.tanh(self.left(left)) * self.right(right)


@block("chunk_branch")
class ChunkBranch(nn.Module):
    """One half passes by, the other goes through a branch (ShuffleNet, CSPNet)."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        half = even(width) // 2
        self.stem = conv_norm(shape, 2 * half, option)
        self.branch = conv_norm((half, *shape[1:]), half if option % 2 else 3, option)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.stem(x).chunk(2, dim=1)
        return torch.cat([left, self.branch(right)], 1)


def shuffle(x: Tensor, groups: int) -> Tensor:
    n, c = x.shape[:2]
    return x.view(n, groups, c // groups, *x.shape[2:]).transpose(1, 2).contiguous().view(x.shape)


@block("shuffle")
class Shuffle(nn.Module):
    """Channel shuffle between grouped convolutions, with sizes read from the input."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.groups = 2 + option % 2
        width = self.groups * (1 + width // 3)
        self.first = conv(shape, width)
        self.second = conv((width, *shape[1:]), width, groups=self.groups if option % 4 < 2 else 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(shuffle(torch.sigmoid(self.first(x)), self.groups))


@block("literal_shuffle")
class LiteralShuffle(nn.Module):
    """Channel shuffle with its sizes written in."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.groups, self.each = 2, 1 + width // 2
        self.first = conv(shape, 2 * self.each)
        self.second = conv_norm((2 * self.each, *shape[1:]), width, option)

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.first(x))
        space = y.shape[2:]
        y = y.view(-1, self.groups, self.each, *space).transpose(1, 2).reshape(-1, self.groups * self.each, *space)
        return self.second(y)


@block("pixel_shuffle", dims=(2,))
class PixelShuffle(nn.Module):
    """Depth to space; where the map is large, space to depth first."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.small = nn.PixelUnshuffle(2) if min(shape[1:]) >= 6 and all(s % 2 == 0 for s in shape[1:]) else None
        channels = shape[0] * (4 if self.small else 1)
        self.conv = conv((channels, *shape[1:]), 4 * (1 + width // 4))
        self.large = nn.PixelShuffle(2) if self.small or max(shape[1:]) <= 6 else nn.Identity()
        self.act = ACTIVATIONS[option]()

    def forward(self, x: Tensor) -> Tensor:
        if self.small is not None:
            x = self.small(x)
        return self.large(self.act(self.conv(x)))


@block("focus", dims=(2,))
class Focus(nn.Module):
    """Space to depth by slicing, and a convolution on top."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.before = conv_norm(shape, 3, option)
        self.works = all(s % 2 == 0 and s >= 4 for s in shape[1:])
        self.conv = conv((12 if self.works else 3, *shape[1:]), width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        if self.works:
            x = torch.cat([x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]], 1)
        return self.conv(x)


@block("glu")
class Glu(nn.Module):
    """A gated linear unit, as the library has it or by chunk."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.conv = conv(shape, 2 * width)
        self.own = option % 2 == 0

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if self.own:
            return F.glu(y, dim=1)
        value, gate = torch.chunk(y, 2, dim=1)
        return value * torch.sigmoid(gate)


@block("decoder")
class Decoder(nn.Module):
    """Linear, view as a map, transposed convolution."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        dims = len(shape) - 1
        self.pool = ADAPTIVE[dims](1)
        self.side = 2 + option % 2
        self.space = (self.side,) * dims
        self.width = width if option < 4 else -1  # written in, or left to view
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
    """GroupNorm in one group, in two, in pairs, or with every channel alone."""

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
        self.by_linear, self.written_in = option % 2 == 0, option % 4 == 0
        self.width = width
        layer = (lambda a, b: nn.Linear(a, b)) if self.by_linear else (lambda a, b: conv((a, *shape[1:]), b, kernel=1))
        self.squeeze, self.excite = layer(width, squeezed), layer(squeezed, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        ones = (1,) * (x.dim() - 2)
        pooled = x.mean(over_space(x), keepdim=True)
        if self.by_linear:
            gate = self.excite(F.relu(self.squeeze(pooled.flatten(1))))
            gate = gate.view(-1, self.width if self.written_in else x.shape[1], *ones)
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
    """ECA: a one-dimensional convolution along the channels makes their gates, so neighbours matter."""

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


@block("tied")
class Tied(nn.Module):
    """Two convolutions with one weight."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.stem = conv_norm(shape, width, option)
        self.first = conv((width, *shape[1:]), width)
        self.second = conv((width, *shape[1:]), width, bias=option % 2 == 0)
        self.second.weight = self.first.weight
        self.chained = option < 4

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        if self.chained:
            return self.second(torch.tanh(self.first(x)))
        return torch.cat([self.first(x), torch.tanh(self.second(x))], 1)


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


@block("twice")
class Twice(nn.Module):
    """One layer called twice: on its own output, or on two inputs."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.a, self.b = conv_norm(shape, width, option), conv_norm(shape, width, (option + 1) % 8)
        self.same = conv((width, *shape[1:]), width)
        self.chained = option % 2 == 0

    def forward(self, x: Tensor) -> Tensor:
        if self.chained:
            return self.same(F.elu(self.same(self.a(x)))) + self.b(x)
        return torch.cat([self.same(self.a(x)), self.same(self.b(x))], 1)


@block("res2net")
class Res2Net(nn.Module):
    """A split with its widths written in, and a ladder of convolutions."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.scale, self.each = 2 + option % 3, 1 + width // 3
        self.first = conv_norm(shape, self.scale * self.each, option, kernel=1)
        self.rungs = nn.ModuleList(conv_norm((self.each, *shape[1:]), self.each, option) for _ in range(self.scale - 1))
        self.last = conv((self.scale * self.each, *shape[1:]), shape[0], kernel=1)

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.split(self.first(x), self.each, 1)
        outs = [self.rungs[0](parts[0])]
        for i, rung in enumerate(self.rungs):
            if i > 0:
                outs.append(rung(outs[-1] + parts[i]))
        return self.last(torch.cat([*outs, parts[-1]], 1)) + x


@block("selective")
class Selective(nn.Module):
    """SKNet: two branches stacked, a softmax between them, and their weighted sum."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(conv_norm(shape, width, (option + i) % 8, kernel=2 * i + 1) for i in range(2))
        self.squeeze = conv((width, *shape[1:]), 3, kernel=1)
        self.select = conv((3, *shape[1:]), 2 * width, kernel=1)
        self.width = width if option % 2 else None

    def forward(self, x: Tensor) -> Tensor:
        y = torch.stack([branch(x) for branch in self.branches], 1)
        pooled = y.sum(1).mean(over_space(x), keepdim=True)
        gates = self.select(F.relu(self.squeeze(pooled)))
        gates = gates.view(x.shape[0], 2, self.width or y.shape[2], *(1,) * (x.dim() - 2)).softmax(1)
        return (y * gates).sum(1)


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


@block("attention")
class Attention(nn.Module):
    """A transformer block on the pixels: norm, attention, norm, MLP, each with a residual."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.heads, self.each = 1 + option % 2, 1 + width // 4
        dim = self.dim = 2 * self.heads * self.each
        self.stem = conv(shape, dim, kernel=1)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.fused = option % 4 < 2
        self.whole = nn.MultiheadAttention(dim, self.heads, batch_first=True) if option >= 6 else None
        if self.whole is None:
            self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, dim))

    def attend(self, x: Tensor) -> Tensor:
        if self.whole is not None:
            return self.whole(x, x, x, need_weights=False)[0]
        n, tokens, dim = x.shape
        q, k, v = self.qkv(x).reshape(n, tokens, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = ((q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(n, tokens, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        tokens = x.flatten(2).transpose(1, 2)
        tokens = tokens + self.attend(self.norm1(tokens))
        tokens = tokens + self.mlp(self.norm2(tokens))
        return tokens.transpose(1, 2).reshape(x.shape[0], -1, *x.shape[2:])


@block("inception")
class Inception(nn.Module):
    """Branches of different widths, concatenated, one of them pooled."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        dims = len(shape) - 1
        self.a = conv_norm(shape, 2 + option % 3, option, kernel=1)
        self.b = nn.Sequential(conv_norm(shape, width, option, kernel=1), conv((width, *shape[1:]), 3))
        pool = AVG_POOL[dims](3, 1, 1) if min(shape[1:]) >= 3 else nn.Identity()
        self.c = nn.Sequential(pool, conv(shape, 2, kernel=1))
        self.gamma = BATCH_NORM[dims](2 + option % 3 + 5)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.gamma(torch.cat([self.a(x), self.b(x), self.c(x)], 1)))


@block("ghost")
class Ghost(nn.Module):
    """Half of the channels made cheaply from the other half, and a slice to the width asked for."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        half = (width + 1) // 2
        self.primary = conv_norm(shape, half, option, kernel=1)
        self.cheap = conv((half, *shape[1:]), half, groups=half)
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        a = self.primary(x)
        return torch.cat([a, F.relu6(self.cheap(a))], 1)[:, : self.width]


@block("partial")
class Partial(nn.Module):
    """FasterNet: convolve the first channels, let the others pass."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.stem = conv_norm(shape, width, option)
        self.first = max(1, width // 3)
        self.conv = conv((self.first, *shape[1:]), self.first)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        a, b = torch.split(x, [self.first, x.shape[1] - self.first], 1)
        return torch.cat([self.conv(a), b], 1)


@block("star")
class Star(nn.Module):
    """Two branches joined: multiplied, their maximum, one chosen by the other, or their difference."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.a, self.b = conv(shape, width), conv_norm(shape, width, option)
        self.option = option % 4

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a(x), self.b(x)
        if self.option == 0:
            return a * b
        if self.option == 1:
            return torch.maximum(a, b)
        if self.option == 2:
            return torch.where(b > 0.3, a, 2 * b - 1)
        return a - b


@block("arithmetic")
class Arithmetic(nn.Module):
    """Constants and means in between; a channel of zeros does not stay one."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.first, self.second = conv(shape, width), conv((width, *shape[1:]), 2 + option)

    def forward(self, x: Tensor) -> Tensor:
        y = (2 * self.first(x) + 1).clamp(-3, 3)
        y = y - 0.5 * y.mean(over_space(y), keepdim=True)
        return self.second(torch.exp(-y.square()))


@block("over_channels")
class OverChannels(nn.Module):
    """Ops in which every channel looks at the others: softmax, norm, running sum, local response."""

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


@block("reorder")
class Reorder(nn.Module):
    """Channels moved about: indexed, flipped, rolled, repeated, odd before even, or with their halves swapped."""

    order: Tensor

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.first = conv_norm(shape, width, option)
        self.register_buffer("order", torch.arange(width).roll(1).flip(0))
        self.option, self.half = option, width // 2
        self.second = conv((width * (2 if option in (3, 5) else 1), *shape[1:]), 4)

    def move(self, y: Tensor) -> Tensor:
        if self.option == 0:
            return y[:, self.order]
        if self.option == 1:
            return y.flip(1)
        if self.option == 2:
            return y.roll(1, 1)
        if self.option == 3:
            return y.repeat(1, 2, *(1,) * (y.dim() - 2))
        if self.option == 4:
            return torch.cat([y[:, ::2], y[:, 1::2]], 1)
        if self.option == 5:
            return y.repeat_interleave(2, 1)
        if self.option == 6:
            return torch.cat([y[:, 1:], y[:, :1]], 1)
        return torch.cat([y[:, self.half :], y[:, : self.half]], 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.move(self.first(x)))


@block("coordinates")
class Coordinates(nn.Module):
    """Channels that no layer made, beside those that one did."""

    ramp: Tensor

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.first = conv_norm(shape, width, option)
        self.register_buffer("ramp", torch.ones(1, 1, *shape[1:]))
        self.second = conv((width + 1, *shape[1:]), 3)

    def forward(self, x: Tensor) -> Tensor:
        ramp = self.ramp.expand(x.shape[0], 1, *x.shape[2:])
        return self.second(torch.cat([self.first(x), ramp], 1))


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


@block("separable_pair")
class SeparablePair(nn.Module):
    """Two branches that read one stem, one of them depthwise; added with a third."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.stem = conv_norm(shape, width, option)
        self.deep = conv((width, *shape[1:]), width, groups=width)
        self.full = conv((width, *shape[1:]), width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return F.hardtanh(self.deep(x) + self.full(x) + x, -2, 2)
