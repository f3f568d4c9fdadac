"""Networks for each kind of wiring: residuals, concats, splits, shuffles, gates, several inputs and outputs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support.cases.base import IMAGE, Conv, Net, case, chain


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


@case({"a": 6, "c": 4})
def branches_by_softmax() -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        both = torch.stack([m.a(x), m.b(x)], 1)
        weights = m.d(F.relu(m.c(both.sum(1).mean((2, 3)))))
        weights = weights.view(len(x), 2, -1, 1, 1).softmax(1)
        return m.e((both * weights).sum(1))

    return Net(run, a=Conv(3, 6, 1), b=Conv(3, 6, 1), c=nn.Linear(6, 4), d=nn.Linear(4, 12), e=Conv(6, 5, 1))


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
def positions_of_values() -> nn.Module:
    def run(m: Net, x: Tensor) -> tuple[Tensor, Tensor]:
        y = m.b(F.relu(m.a(x)))
        return y, (y > 0).nonzero().sum(0)

    return Net(run, **chain())


@case({}, {"a": 8})
def elements_selected_by_values() -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        y = m.b(F.relu(m.a(x)))
        return y[y > 0]

    return Net(run, **chain())


@case({"b": 6})
def channels_selected_by_values() -> nn.Module:
    def run(m: Net, x: Tensor) -> tuple[Tensor, Tensor]:
        y = m.a(x)
        return m.c(F.relu(m.b(y))), y[:, (y.mean((0, 2, 3)) > 0).nonzero().flatten()]

    return Net(run, a=Conv(3, 8, 1), b=Conv(8, 6, 1), c=Conv(6, 5, 1))
