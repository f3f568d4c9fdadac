"""Blocks that split, slice, shuffle and reorder channels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from support.networks.parts import ACTIVATIONS, Shape, block, conv, conv_norm, even


@block("concat_split")
class ConcatSplit(nn.Module):
    """A concat followed by a split at other positions."""

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
    """One half passes unchanged, the other through a branch (ShuffleNet, CSPNet)."""

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
    """Channel shuffle between grouped convolutions, with sizes taken from the input."""

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
    """Channel shuffle with hard-coded sizes."""

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
    """A gated linear unit, by F.glu or by chunk."""

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


@block("res2net")
class Res2Net(nn.Module):
    """A split with hard-coded widths, and a chain of convolutions."""

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


@block("ghost")
class Ghost(nn.Module):
    """Half of the channels computed by a depthwise layer from the other half, then sliced to the given width."""

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
    """FasterNet: a convolution of the first channels; the others pass unchanged."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.stem = conv_norm(shape, width, option)
        self.first = max(1, width // 3)
        self.conv = conv((self.first, *shape[1:]), self.first)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        a, b = torch.split(x, [self.first, x.shape[1] - self.first], 1)
        return torch.cat([self.conv(a), b], 1)


@block("reorder")
class Reorder(nn.Module):
    """Channels reordered: indexed, flipped, rolled, repeated, even before odd, or with their halves swapped."""

    order: Tensor

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.first = conv_norm(shape, width, option)
        self.register_buffer("order", torch.arange(width).roll(1).flip(0))
        self.option, self.middle = option, width // 2
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
        return torch.cat([y[:, self.middle :], y[:, : self.middle]], 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.move(self.first(x)))


@block("coordinates")
class Coordinates(nn.Module):
    """Channels that no layer produces, concatenated with those of a layer."""

    ramp: Tensor

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.first = conv_norm(shape, width, option)
        self.register_buffer("ramp", torch.ones(1, 1, *shape[1:]))
        self.second = conv((width + 1, *shape[1:]), 3)

    def forward(self, x: Tensor) -> Tensor:
        ramp = self.ramp.expand(x.shape[0], 1, *x.shape[2:])
        return self.second(torch.cat([self.first(x), ramp], 1))
