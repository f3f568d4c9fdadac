"""Networks for each kind of layer: groups, norms, per-channel parameters, computed weights, attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from support.cases.base import Conv, Net, case, chain


@case({"a": 4, "b": 8})
def linear_to_transposed() -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        seed = m.a(x.mean((2, 3)))
        return m.c(m.b(seed.view(seed.shape[0], -1, 8, 8)))  # wider than it has channels

    return Net(run, a=nn.Linear(3, 256), b=nn.ConvTranspose2d(4, 8, 2, 2), c=Conv(8, 5, 1))


@case({"0": 4})
def transposed_many_groups() -> nn.Module:
    return nn.Sequential(Conv(3, 8, 1), nn.ConvTranspose2d(8, 16, 2, 2, groups=4), Conv(16, 5, 1))


@case({"0": 8, "1": 4})
def transposed_few_groups() -> nn.Module:
    return nn.Sequential(Conv(3, 16, 1), nn.ConvTranspose2d(16, 8, 2, 2, groups=2), Conv(8, 5, 1))


@case({"0": 8, "1": 4})
def few_wide_groups() -> nn.Module:
    return nn.Sequential(Conv(3, 16, 1), Conv(16, 8, 3, groups=2), Conv(8, 5, 1))


@case({"0": 8})
def many_narrow_groups() -> nn.Module:
    return nn.Sequential(Conv(3, 16, 1), Conv(16, 24, 3, groups=8), Conv(24, 5, 1))


@case({"0": 8})
def depthwise_with_multiplier() -> nn.Module:
    return nn.Sequential(Conv(3, 8, 1), Conv(8, 24, 3, groups=8), Conv(24, 5, 1))


@case({"a": 2, "w": 3}, {"a": 8})
def functional_groups() -> nn.Module:
    w = nn.Parameter(torch.empty(24, 2, 3, 3))
    return Net(lambda m, x: m.b(F.conv2d(m.a(x), m.w, groups=8)), a=Conv(3, 16, 1), w=w, b=Conv(24, 5, 1))


@case({"0": 8, "2": 8, "4": 8, "6": 8, "8": 8, "10": 8})
def norms_by_channel() -> nn.Module:
    norms = [
        nn.BatchNorm2d(8),
        nn.BatchNorm2d(8, affine=False),
        nn.BatchNorm2d(8, track_running_stats=False),
        nn.BatchNorm2d(8, affine=False, track_running_stats=False),
        nn.InstanceNorm2d(8),
        nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
    ]
    layers = [layer for i, norm in enumerate(norms) for layer in (Conv(8 if i else 3, 8, 1), norm)]
    return nn.Sequential(*layers, Conv(8, 5, 1))


@case({"0": 4, "2": 4})
def group_norms() -> nn.Module:
    return nn.Sequential(
        Conv(3, 8, 1), nn.GroupNorm(4, 8), Conv(8, 8, 1), nn.GroupNorm(4, 8, affine=False),
        Conv(8, 8, 1), nn.GroupNorm(1, 8), Conv(8, 5, 1),
    )  # fmt: skip


@case({}, {"a": 4})
def functional_group_norm() -> nn.Module:
    return Net(lambda m, x: m.b(F.group_norm(m.a(x), 4)), **chain())


@case({})
def layer_norm() -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        return m.b(m.n(m.a(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2))

    return Net(run, n=nn.LayerNorm(8), **chain())


@case({"0": 8, "2": 8})
def prelu() -> nn.Module:
    return nn.Sequential(Conv(3, 8, 1), nn.PReLU(8), Conv(8, 8, 1), nn.PReLU(), Conv(8, 5, 1))


@case({"a": 8})
def layer_scale_and_buffer() -> nn.Module:
    gamma = nn.Parameter(torch.empty(8, 1, 1))
    return Net(lambda m, x: m.b(m.a(x) * m.gamma + m.shift), gamma=gamma, shift=torch.empty(1, 8, 1, 1), **chain())


@case({}, {"a": 8})
def plain_tensor_attribute() -> nn.Module:
    net = Net(lambda m, x: m.b(m.a(x) * m.k), **chain())
    net.k = torch.arange(8, dtype=torch.float64).view(1, 8, 1, 1)
    return net


@case({"a": 8})
def tied_weights() -> nn.Module:
    net = Net(
        lambda m, x: m.d(m.c(F.relu(m.b(m.a(x))))), a=Conv(3, 8, 1), b=Conv(8, 8, 1), c=Conv(8, 8, 1), d=Conv(8, 5, 1)
    )
    net.c.weight = net.b.weight
    return net


@case({"a": 8})
def called_twice() -> nn.Module:
    return Net(lambda m, x: m.c(m.b(F.relu(m.b(m.a(x))))), a=Conv(3, 8, 1), b=Conv(8, 8, 1), c=Conv(8, 5, 1))


@case({"b": 8}, {"a": 8, "b": 8})
def weight_normed() -> nn.Module:
    return Net(
        lambda m, x: m.c(F.relu(m.b(F.relu(m.a(x))))), a=Conv(3, 8, 1), b=weight_norm(Conv(8, 8, 1)), c=Conv(8, 5, 1)
    )


@case({}, {"a": 8})
def weight_normed_groups() -> nn.Module:
    b = weight_norm(Conv(8, 8, 3, padding=1, groups=8), dim=2)
    return Net(lambda m, x: m.c(F.relu(m.b(F.relu(m.a(x))))), a=Conv(3, 8, 1), b=b, c=Conv(8, 5, 1))


@case({}, {"a": 8})
def spectral_normed() -> nn.Module:
    return Net(lambda m, x: m.b(m.a(x)), a=spectral_norm(Conv(3, 8, 1)), b=spectral_norm(Conv(8, 5, 1)))


class Standardised(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(flat, None, None, training=True).reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


@case({}, {"a": 8, "b": 8})
def weight_standardised() -> nn.Module:
    parts = {"a": Standardised(3, 8, 3), "b": Standardised(8, 8, 3), "c": Standardised(8, 5, 3)}
    return Net(lambda m, x: m.c(F.relu(m.b(F.relu(m.a(x))))), **parts)


@case({"a": 8, "c": 6}, example=(torch.randn(2, 3, 9).double(), torch.randn(2, 2, 4, 4, 4).double()))
def one_and_three_dimensions() -> nn.Module:
    def run(m: Net, x: Tensor, y: Tensor) -> Tensor:
        return m.b(m.a(x)).mean(2) + m.d(m.c(y)).mean((2, 3, 4))

    return Net(run, a=nn.Conv1d(3, 8, 3), b=nn.Conv1d(8, 5, 1), c=nn.Conv3d(2, 6, 2), d=nn.Conv3d(6, 5, 1))


@case({"f1": 32}, {"f1": 32, "qkv": 4})
def transformer_block() -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        t = m.p(x).flatten(2).transpose(1, 2) + m.pos
        n, length, width = t.shape
        q, k, v = m.qkv(t).reshape(n, length, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        t = t + m.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, length, width))
        return m.head((t + m.f2(F.gelu(m.f1(m.n(t))))).mean(1))

    return Net(
        run, p=Conv(3, 16, 2, 2), qkv=nn.Linear(16, 48), o=nn.Linear(16, 16), n=nn.LayerNorm(16), f1=nn.Linear(16, 32),
        f2=nn.Linear(32, 16), head=nn.Linear(16, 5), pos=nn.Parameter(torch.empty(1, 16, 16)),
    )  # fmt: skip


@case({"a": 8, "w": 6})
def bare_matrices() -> nn.Module:
    w, v = nn.Parameter(torch.empty(8, 6)), nn.Parameter(torch.empty(6, 4))
    return Net(lambda m, x: m.a(x).flatten(2).transpose(1, 2) @ m.w @ m.v, a=Conv(3, 8, 1), w=w, v=v)


@case({"a": 8})
def resized_and_pooled() -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        x = F.max_pool2d(m.a(x), 2)
        return m.b(F.interpolate(x, scale_factor=2.0, mode="bilinear") + F.interpolate(x, size=(8, 8)))

    return Net(run, **chain())


@case({})
def unknown_op() -> nn.Module:
    return Net(lambda m, x: m.b(torch.fft.fft(m.a(x), dim=1).real), **chain())


@case({"a": 8})
def changes_of_precision() -> nn.Module:
    return Net(lambda m, x: m.b(m.a(x).to(torch.float32).sigmoid().to(torch.float64)), **chain())


@case({"a": 8})
def part_without_gradients() -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = m.a(x)
        return m.b(x)

    return Net(run, **chain())


@case({"a": 8})
def part_without_autocast() -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        x = m.a(x)
        with torch.autocast("cpu", enabled=False):
            x = x.sigmoid() * 2
        return m.b(x)

    return Net(run, **chain())
