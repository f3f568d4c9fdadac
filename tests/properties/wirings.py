"""Blocks in which channels meet and move: residuals, concats, splits, shuffles, shared layers, attention."""

from __future__ import annotations

import torch
from parts import ACTIVATIONS, AVG_POOL, BATCH_NORM, Shape, block, conv, conv_norm, even, over_space, strided
from torch import Tensor, nn
from torch.nn import functional as F


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
        gates = self.select(F.elu(self.squeeze(pooled)))
        gates = gates.view(x.shape[0], 2, self.width or y.shape[2], *(1,) * (x.dim() - 2)).softmax(1)
        return (y * gates).sum(1)


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


@block("reorder")
class Reorder(nn.Module):
    """Channels moved about: indexed, flipped, rolled, repeated, odd before even, or with their halves swapped."""

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
