"""Small networks, one for each way in which channels can be wired, with the groups that tracing must find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Groups = dict[str, int]  # prunable group -> its number of units
Conv = nn.Conv2d


class Net(nn.Module):
    """A module with the given parts and forward."""

    def __init__(self, run: Callable[..., Any], /, **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x: Tensor, *more: Any) -> Any:
        return self.run(self, x, *more)


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    module: Groups
    graph: Groups
    example: Any = IMAGE


CASES: dict[str, Case] = {}


def case(module: Groups, graph: Groups | None = None, example: Any = IMAGE) -> Callable[[Callable[[], nn.Module]], Any]:
    def add(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        CASES[make.__name__] = Case(make, module, module if graph is None else graph, example)
        return make

    return add


def build(name: str) -> tuple[nn.Module, Any]:
    """The network in double precision, every weight, statistic and affine parameter at random."""
    made = CASES[name]
    network = made.make().double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, tensor in [*network.named_parameters(), *network.named_buffers()]:
            if tensor.is_floating_point():
                noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
                tensor.copy_(noise.abs() + 0.5 if key.endswith("var") else noise * 0.5 + 0.1)
    return network, made.example


def chain(*, width: int = 8) -> dict[str, nn.Module]:
    return {"a": Conv(3, width, 1), "b": Conv(width, 5, 1)}


@case({"a": 8})
def plain() -> nn.Module:
    return Net(lambda m, x: m.b(F.relu(m.a(x))), **chain())


@case({"a": 8, "b": 6})
def residual() -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        x = m.a(x)
        return m.d(x + m.c(F.relu(m.b(x))))

    return Net(run, a=Conv(3, 8, 1), b=Conv(8, 6, 3, padding=1), c=Conv(6, 8, 1), d=Conv(8, 5, 1))


@case({"a": 8, "b": 16}, {"a": 8, "b": 16, "c": 8})
def option_a_shortcut() -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        x = F.relu(m.a(x))
        y = m.c(F.relu(m.b(x)))
        return m.d((F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 4, 4)) + y).mean((2, 3)))

    return Net(run, a=Conv(3, 8, 3, padding=1), b=Conv(8, 16, 3, 2, 1), c=Conv(16, 16, 3, 1, 1), d=nn.Linear(16, 5))


@case({"a": 4, "b": 3, "c": 2})
def dense_concat() -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        one = m.a(x)
        two = torch.cat([one, m.b(one)], 1)
        return m.d(torch.cat([two, m.c(two)], 1))

    return Net(run, a=Conv(3, 4, 1), b=Conv(4, 3, 1), c=Conv(7, 2, 1), d=Conv(9, 5, 1))


@case({}, {"a": 5, "b": 6})
def concat_then_split() -> nn.Module:
    def run(m: Net, x: Tensor) -> Any:
        left, right = torch.cat([m.a(x), m.b(x)], 1).split([5, 7], 1)
        return m.c(left), m.d(right)

    return Net(run, a=Conv(3, 6, 1), b=Conv(3, 6, 1), c=Conv(5, 5, 1), d=Conv(7, 5, 1))


@case({"a": 6, "b": 7}, {"a": 6, "a#2": 6, "b": 7})
def chunk() -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        left, right = m.a(x).chunk(2, 1)
        return m.c(torch.cat([m.b(left), right], 1))

    return Net(run, a=Conv(3, 12, 1), b=Conv(6, 7, 1), c=Conv(13, 5, 1))


@case({}, {"a": 3, "a#2": 3, "a#3": 2})
def uneven_chunk() -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        one, two, three = m.a(x).chunk(3, 1)
        return m.b(one) + m.c(two) + m.d(three)

    return Net(run, a=Conv(3, 8, 1), b=Conv(3, 5, 1), c=Conv(3, 5, 1), d=Conv(2, 5, 1))


@case({"c": 4}, {"a": 4, "a#2": 4, "a#3": 4, "c": 4})
def split_by_literal_widths() -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        parts = torch.split(m.a(x), 4, 1)
        first = m.b(parts[0])
        return m.d(torch.cat([first, m.c(parts[1] + first), parts[2]], 1))

    return Net(run, a=Conv(3, 12, 1), b=Conv(4, 4, 1), c=Conv(4, 4, 1), d=Conv(12, 5, 1))


@case({"a#2": 7}, {"a": 5, "a#2": 7})
def slice_by_literal() -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        x = m.a(x)
        return m.b(x[:, :5]) + m.c(x[:, 5:])

    return Net(run, a=Conv(3, 12, 1), b=Conv(5, 5, 1), c=Conv(7, 5, 1))


@case({"a": 6})
def shuffle_from_shape() -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        x = m.a(x)
        n, c, h, w = x.shape
        return m.b(x.view(n, 4, c // 4, h, w).transpose(1, 2).reshape(n, c, h, w))

    return Net(run, **chain(width=24))


@case({}, {"a": 6})
def shuffle_by_literal() -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        return m.b(m.a(x).view(-1, 4, 6, 8, 8).transpose(1, 2).reshape(-1, 24, 8, 8))

    return Net(run, **chain(width=24))


@case({"a": 6})
def pixel_shuffle() -> nn.Module:
    return Net(lambda m, x: m.b(F.pixel_shuffle(m.a(x), 2)), a=Conv(3, 24, 1), b=Conv(6, 5, 1))


@case({"a": 6})
def pixel_unshuffle() -> nn.Module:
    return Net(lambda m, x: m.b(F.pixel_unshuffle(m.a(x), 2)), a=Conv(3, 6, 1), b=Conv(24, 5, 1))


@case({"a": 12})
def glu() -> nn.Module:
    return Net(lambda m, x: m.b(F.glu(m.a(x), 1)), a=Conv(3, 24, 1), b=Conv(12, 5, 1))


@case({"a": 6})
def flatten_to_linear() -> nn.Module:
    return Net(lambda m, x: m.b(m.a(x).flatten(1)), a=Conv(3, 6, 1), b=nn.Linear(6 * 64, 5))


@case({}, {"a": 6})
def flatten_by_literal() -> nn.Module:
    return Net(lambda m, x: m.b(m.a(x).view(-1, 6 * 64)), a=Conv(3, 6, 1), b=nn.Linear(6 * 64, 5))


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


@case({"a": 8, "c": 4})
def squeeze_excite() -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        x = m.a(x)
        gate = torch.sigmoid(m.d(F.relu(m.c(x.mean((2, 3))))))
        return m.b(x * gate[:, :, None, None])

    return Net(run, c=nn.Linear(8, 4), d=nn.Linear(4, 8), **chain())


@case({"a": 8})
def spatial_gate() -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        x = m.a(x)
        return m.b(x * torch.sigmoid(m.gate(x)))

    return Net(run, gate=Conv(8, 1, 3, padding=1), **chain())


@case({})
def gate_by_channel_mean() -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        x = m.a(x)
        pooled = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
        return m.b(x * torch.sigmoid(m.gate(pooled)))

    return Net(run, gate=Conv(2, 1, 3, padding=1), **chain())


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


@case({})
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


@case({"a": 8}, example=(IMAGE, torch.randn(2, 4, 8, 8, dtype=torch.float64)))
def two_inputs_dict_output() -> nn.Module:
    def run(m: Net, x: Tensor, y: Tensor) -> Any:
        total = m.a(x) + m.b(y)
        return {"logits": m.c(total), "more": [m.d(total)]}

    return Net(run, a=Conv(3, 8, 1), b=Conv(4, 8, 1), c=Conv(8, 5, 1), d=Conv(8, 2, 1))


@case({"a": 8, "b": 6})
def auxiliary_head_in_training() -> nn.Module:
    def run(m: Net, x: Tensor) -> Any:
        x = F.relu(m.a(x))
        out = m.c(m.b(x))
        return (out, m.aux(x)) if m.training else out

    return Net(run, a=Conv(3, 8, 1), b=Conv(8, 6, 1), c=Conv(6, 5, 1), aux=Conv(8, 4, 1))


@case({"a": 8, "c": 6}, example=(torch.randn(2, 3, 9).double(), torch.randn(2, 2, 4, 4, 4).double()))
def one_and_three_dimensions() -> nn.Module:
    def run(m: Net, x: Tensor, y: Tensor) -> Tensor:
        return m.b(m.a(x)).mean(2) + m.d(m.c(y)).mean((2, 3, 4))

    return Net(run, a=nn.Conv1d(3, 8, 3), b=nn.Conv1d(8, 5, 1), c=nn.Conv3d(2, 6, 2), d=nn.Conv3d(6, 5, 1))


@case({"f1": 32})
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


@case({"a": 6, "c": 4})
def branches_by_softmax() -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        both = torch.stack([m.a(x), m.b(x)], 1)
        weights = m.d(F.relu(m.c(both.sum(1).mean((2, 3)))))
        weights = weights.view(len(x), 2, -1, 1, 1).softmax(1)
        return m.e((both * weights).sum(1))

    return Net(run, a=Conv(3, 6, 1), b=Conv(3, 6, 1), c=nn.Linear(6, 4), d=nn.Linear(4, 12), e=Conv(6, 5, 1))


@case({"a": 8})
def resized_and_pooled() -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        x = F.max_pool2d(m.a(x), 2)
        return m.b(F.interpolate(x, scale_factor=2.0, mode="bilinear") + F.interpolate(x, size=(8, 8)))

    return Net(run, **chain())


@case({"a": 8})
def part_without_gradients() -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = m.a(x)
        return m.b(x)

    return Net(run, **chain())


@case({})
def unknown_op() -> nn.Module:
    return Net(lambda m, x: m.b(torch.fft.fft(m.a(x), dim=1).real), **chain())


@case({"a": 6})
def native_channel_shuffle() -> nn.Module:
    return Net(lambda m, x: m.b(F.channel_shuffle(m.a(x), 4)), **chain(width=24))


@case({"a": 8})
def flipped_channels() -> nn.Module:
    return Net(lambda m, x: m.b(m.a(x).flip(1)), **chain())


@case({})
def rolled_channels() -> nn.Module:
    return Net(lambda m, x: m.b(m.a(x).roll(2, 1)), **chain())


@case({"a": 8})
def repeated_channels() -> nn.Module:
    return Net(lambda m, x: m.b(m.a(x).repeat(1, 2, 1, 1)), a=Conv(3, 8, 1), b=Conv(16, 5, 1))


@case({"a": 8})
def changes_of_precision() -> nn.Module:
    return Net(lambda m, x: m.b(m.a(x).to(torch.float32).sigmoid().to(torch.float64)), **chain())


@case({"a": 4}, {"a": 6})
def shuffle_with_more_groups_than_channels() -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        x = m.a(x)
        n, c, h, w = x.shape
        return m.b(x.view(n, 6, c // 6, h, w).transpose(1, 2).reshape(n, c, h, w))

    return Net(run, **chain(width=24))


@case({"a": 4})
def shuffle_with_as_many_groups_as_channels() -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        x = m.a(x)
        n, c, h, w = x.shape
        return m.b(x.view(n, 4, c // 4, h, w).transpose(1, 2).reshape(n, c, h, w))

    return Net(run, **chain(width=16))


@case({"a": 2})
def pixel_shuffle_to_linear() -> nn.Module:
    return Net(lambda m, x: m.b(F.pixel_shuffle(m.a(x), 2).flatten(1)), a=Conv(3, 8, 1), b=nn.Linear(2 * 256, 5))


@case({})
def pixel_shuffle_to_one_channel() -> nn.Module:
    return Net(lambda m, x: m.b(F.pixel_shuffle(m.a(x), 2).flatten(1)), a=Conv(3, 4, 1), b=nn.Linear(256, 5))


@case({"a": 8})
def part_without_autocast() -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        x = m.a(x)
        with torch.autocast("cpu", enabled=False):
            x = x.sigmoid() * 2
        return m.b(x)

    return Net(run, **chain())
