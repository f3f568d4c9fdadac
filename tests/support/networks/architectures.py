"""Random networks: a spec is plain data, `build(spec)` is the network that it describes.

>>> spec = random_spec(7)
>>> network, example = build(spec)
>>> network(*example)
"""

from __future__ import annotations

import random
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from support.networks.blocks import BLOCKS, DIMS
from support.networks.parts import ACTIVATIONS, BATCH_NORM, conv, conv_norm, over_space

Spec = dict[str, Any]

HEADS = ("pool", "flatten", "flatten_norm", "mlp", "conv", "map")
SIZES = {1: (4, 12), 2: (4, 10), 3: (4, 5)}
SECOND_INPUTS = ("", "", "add", "cat", "shared")
OUTPUTS = ("tensor", "tensor", "tuple", "dict", "nested")
FRACTIONS = (0.3, 0.5, 0.7)


def examples(count: int) -> settings:
    """Return hypothesis settings for slow examples that are found again from the printed spec, not from a database."""
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )


def kinds(dims: int) -> list[str]:
    """Return the blocks that support a number of spatial dimensions."""
    return sorted(kind for kind in BLOCKS if dims in DIMS[kind])


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    """A strategy for specs; it shrinks towards few, narrow, plain blocks."""
    dims = draw(st.sampled_from((2, 2, 1, 3)))
    one = st.tuples(st.sampled_from(kinds(dims)), st.integers(2, 12), st.integers(0, 7)).map(list)
    return {
        "seed": draw(st.integers(0, 2**31 - 1)),
        "dims": dims,
        "size": draw(st.integers(*SIZES[dims])),
        "channels": draw(st.integers(1, 4)),
        "blocks": draw(st.lists(one, min_size=1, max_size=5)),
        "head": [draw(st.sampled_from(HEADS)), draw(st.integers(2, 12)), draw(st.integers(0, 7))],
        "second_input": draw(st.sampled_from(SECOND_INPUTS)),
        "outputs": draw(st.sampled_from(OUTPUTS)),
        "auxiliary": draw(st.sampled_from((False, False, True))),
        "unused": draw(st.sampled_from((False, False, True))),
        "output": draw(st.sampled_from(("module", "module", "graph"))),
        "kept": draw(st.sampled_from(FRACTIONS)),
    }


def random_spec(seed: int) -> Spec:
    """Return the spec of a seed, from the same space as `specs`."""
    pick = random.Random(seed)
    dims = pick.choice((2, 2, 1, 3))
    return {
        "seed": seed,
        "dims": dims,
        "size": pick.randint(*SIZES[dims]),
        "channels": pick.randint(1, 4),
        "blocks": [
            [pick.choice(kinds(dims)), pick.randint(2, 12), pick.randint(0, 7)] for _ in range(pick.randint(1, 5))
        ],
        "head": [pick.choice(HEADS), pick.randint(2, 12), pick.randint(0, 7)],
        "second_input": pick.choice(SECOND_INPUTS),
        "outputs": pick.choice(OUTPUTS),
        "auxiliary": pick.choice((False, False, True)),
        "unused": pick.choice((False, False, True)),
        "output": pick.choice(("module", "module", "graph")),
        "kept": pick.choice(FRACTIONS),
    }


def build(spec: Spec) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return the network of a spec in float64 and eval mode, with random weights and statistics, and an input."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec["seed"])
        network = Network(spec).double()
        shape = (3, spec["channels"], *(spec["size"],) * spec["dims"])
        count = 2 if spec["second_input"] else 1
        example = tuple(torch.randn(shape, dtype=torch.float64) for _ in range(count))
        randomise(network, example)
        return network.eval(), example


class Head(nn.Module):
    """The end of a network: a classifier of one of several kinds, or a map with an output for each pixel."""

    def __init__(self, shape: tuple[int, ...], kind: str, width: int, option: int) -> None:
        super().__init__()
        self.kind = kind
        flat = int(torch.Size(shape).numel())
        if kind == "flatten_norm":
            self.norm: nn.Module = nn.LayerNorm(flat)
        elif kind == "mlp":
            self.hidden = nn.Linear(flat, width)
            self.norm = nn.BatchNorm1d(width) if option % 2 else nn.Identity()
            self.act = ACTIVATIONS[option]()
            self.drop = nn.Dropout(0.3)
            flat = width
        elif kind == "conv":
            self.conv = conv(shape, 3, kernel=1)
        elif kind == "map":
            self.conv = nn.Sequential(conv_norm(shape, width, option), conv((width, *shape[1:]), 2, kernel=1))
        if kind not in ("conv", "map"):
            self.linear = nn.Linear(shape[0] if kind == "pool" else flat, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "map":
            return self.conv(x)
        if self.kind == "conv":
            return self.conv(x).mean(over_space(x))
        if self.kind == "pool":
            return self.linear(x.mean(over_space(x)))
        x = x.flatten(1) if self.kind == "flatten" else x.reshape(x.size(0), -1)
        if self.kind == "mlp":
            x = self.drop(self.act(self.norm(self.hidden(x))))
        elif self.kind == "flatten_norm":
            x = self.norm(x)
        return self.linear(x)


class Network(nn.Module):
    """A chain of blocks and a head; with a second input, several outputs, an auxiliary head or unused layers."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        channels, dims = spec["channels"], spec["dims"]
        x = torch.zeros(2, channels, *(spec["size"],) * dims)
        self.joined, self.outputs = spec["second_input"], spec["outputs"]
        if self.joined:
            shape = tuple(x.shape[1:])
            self.stem = conv_norm(shape, 4, 0)
            self.other = self.stem if self.joined == "shared" else conv_norm(shape, 4 if self.joined == "add" else 3, 2)
            x = torch.cat([self.stem(x), self.other(x)], 1) if self.joined == "cat" else self.stem(x)
        self.blocks = nn.ModuleList()
        self.middle = (len(spec["blocks"]) - 1) // 2
        middle = x
        for number, (kind, width, option) in enumerate(spec["blocks"]):
            block = BLOCKS[kind](tuple(x.shape[1:]), width, option)
            self.blocks.append(block)
            with torch.no_grad():
                x = block.train()(x)
            middle = x if number == self.middle else middle
        self.head = Head(tuple(x.shape[1:]), *spec["head"])
        seen = tuple(middle.shape[1:])
        self.extra = conv(seen, 2, kernel=1) if self.outputs == "dict" else None
        self.auxiliary = None
        if spec["auxiliary"]:
            self.auxiliary = nn.Sequential(conv_norm(seen, 4, 1, kernel=1), conv((4, *seen[1:]), 2, kernel=1))
        if spec["unused"]:
            self.never_called = conv(seen, 5)
            self.never_read = nn.Parameter(torch.randn(4))
            self.never_normed = BATCH_NORM[dims](3)

    def forward(self, x: Tensor, other: Tensor | None = None) -> Any:
        if other is not None:
            a, b = self.stem(x), self.other(other)
            x = torch.cat([a, b], 1) if self.joined == "cat" else a + b
        middle = x
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number == self.middle:
                middle = x
        y = self.head(x)
        if self.training and self.auxiliary is not None:
            return y, self.auxiliary(middle)
        if self.outputs == "tuple":
            return y, middle.mean(over_space(middle))
        if self.outputs == "dict":
            return {"out": y, "map": self.extra(middle) if self.extra is not None else middle}
        if self.outputs == "nested":
            return {"out": [y, (y.square().sum(),)]}
        return y


@torch.no_grad()
def randomise(network: nn.Module, example: tuple[Tensor, ...]) -> None:
    """Set every weight and statistic to a random number away from zero, so that a wrong cut cannot go unnoticed."""
    for name, parameter in network.named_parameters():
        fan_in = parameter[0].numel() if parameter.dim() > 1 else 1
        scale = 0.3 if name.endswith("bias") else 1.2 / max(1.0, fan_in) ** 0.5
        parameter.copy_(_away_from_zero(parameter) * scale)
    for name, buffer in network.named_buffers():
        if buffer.is_floating_point():
            buffer.copy_(_away_from_zero(buffer).abs() if name.endswith("running_var") else _away_from_zero(buffer))
    norms: list[Any] = [m for m in network.modules() if getattr(m, "running_mean", None) is not None]
    for norm in norms:
        norm.momentum = 1.0  # one pass sets the statistics to those of the data; otherwise most units would be dead
    network.train()(*example)
    for norm in norms:
        norm.momentum = 0.1
        norm.running_mean.add_(0.3 * norm.running_var.sqrt() * _away_from_zero(norm.running_var))
        norm.running_var.mul_(_away_from_zero(norm.running_var).abs()).add_(0.01)


def _away_from_zero(like: Tensor) -> Tensor:
    sign = torch.randint_like(like, 0, 2) * 2 - 1
    return sign * torch.empty_like(like).uniform_(0.5, 1.5)
