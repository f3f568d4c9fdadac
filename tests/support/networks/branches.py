"""Blocks whose branches are added, multiplied or concatenated; shared layers; attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from support.networks.parts import ACTIVATIONS, AVG_POOL, BATCH_NORM, Shape, block, conv, conv_norm, over_space, strided


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
    """Each layer consumes the features of all layers before it."""

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


@block("separable_pair")
class SeparablePair(nn.Module):
    """Two branches of one stem, one of them depthwise, added to the stem."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.stem = conv_norm(shape, width, option)
        self.deep = conv((width, *shape[1:]), width, groups=width)
        self.full = conv((width, *shape[1:]), width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return F.hardtanh(self.deep(x) + self.full(x) + x, -2, 2)


@block("tied")
class Tied(nn.Module):
    """Two convolutions that share a weight."""

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
    """A layer that is called twice: on its own output, or on two inputs."""

    def __init__(self, shape: Shape, width: int, option: int) -> None:
        super().__init__()
        self.a, self.b = conv_norm(shape, width, option), conv_norm(shape, width, (option + 1) % 8)
        self.same = conv((width, *shape[1:]), width)
        self.chained = option % 2 == 0

    def forward(self, x: Tensor) -> Tensor:
        if self.chained:
            return self.same(F.elu(self.same(self.a(x)))) + self.b(x)
        return torch.cat([self.same(self.a(x)), self.same(self.b(x))], 1)


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
