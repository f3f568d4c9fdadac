"""What a layer reads, as a plain convolution, is what it computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import secateur as sc
from secateur.sensitivity import _Tally
from secateur.watch import Read, Watch

LAYERS = {(0, 1): nn.Conv1d, (0, 2): nn.Conv2d, (0, 3): nn.Conv3d}
LAYERS |= {(1, 1): nn.ConvTranspose1d, (1, 2): nn.ConvTranspose2d, (1, 3): nn.ConvTranspose3d}


def readings(model: nn.Module, wanted: dict[str, tuple[sc.Slot, ...]], *inputs: Any) -> list[Read]:
    seen: list[Read] = []
    with torch.no_grad(), Watch(model, wanted, seen.append):
        model(*inputs)
    return seen


def output(read: Read) -> Tensor:
    convolve = (F.conv1d, F.conv2d, F.conv3d)[len(read.stride) - 1]
    return convolve(read.x, read.weight, None, read.stride, 0, read.dilation)


@st.composite
def layers(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """A convolution of any kind, and an input for it."""
    transposed, dims = draw(st.booleans()), draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 2]))
    kernel, stride, dilation, padding = (
        tuple(draw(st.integers(low, high)) for _ in range(dims)) for low, high in ((1, 3), (1, 2), (1, 2), (0, 1))
    )
    settings: dict[str, Any] = {"stride": stride, "dilation": dilation, "padding": padding, "groups": groups}
    if transposed:
        room = [min(p, d * (k - 1)) for p, d, k in zip(padding, dilation, kernel, strict=True)]
        settings |= {"padding": tuple(room), "output_padding": tuple(min(s, 2) - 1 for s in stride)}
    elif draw(st.booleans()) and set(stride) == {1}:
        settings["padding"] = draw(st.sampled_from(["same", "valid"]))
    elif draw(st.booleans()):
        settings["padding_mode"] = draw(st.sampled_from(["zeros", "replicate"]))
    torch.manual_seed(draw(st.integers(0, 99)))
    made = LAYERS[transposed, dims](2 * groups, 3 * groups, kernel, **settings).double()
    return made, torch.randn(
        draw(st.integers(1, 3)), 2 * groups, *[draw(st.integers(5, 7)) for _ in range(dims)]
    ).double()


@settings(max_examples=150)
@given(layers())
def test_convolutions_of_every_kind(case: tuple[nn.Module, Tensor]) -> None:
    layer, x = case
    axis = 0 if layer.transposed else 1
    seen = readings(layer, {"weight": (sc.Slot("weight", axis),)}, x)
    assert len(seen) == layer.groups
    layer.bias = None
    torch.testing.assert_close(torch.cat([output(read) for read in seen], 1), layer(x))
    places = torch.cat([read.places for read in seen])
    assert places.tolist() == (list(range(2 * layer.groups)) if layer.transposed else [0, 1] * layer.groups)
    for read in seen:
        assert read.patches == output(read).shape[2:]


class Products(nn.Module):
    """The ways in which a matrix of weights can meet an activation."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        shape = (4, 5) if kind in ("right", "mm", "addmm", "scaled") else (5, 4)
        self.w = nn.Parameter(torch.randn(shape, dtype=torch.float64))
        self.gain = nn.Parameter(torch.randn((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "linear":
            return F.linear(x, self.w)
        if self.kind == "right":
            return x @ self.w
        if self.kind == "transposed":
            return x @ self.w.T
        if self.kind == "left":
            return torch.matmul(self.w, x.transpose(-1, -2)).transpose(-1, -2)
        if self.kind == "mm":
            return torch.mm(x.flatten(0, -2), self.w)
        if self.kind == "addmm":
            return torch.addmm(torch.zeros(5, dtype=x.dtype), x.flatten(0, -2), self.w) * 1.0
        if self.kind == "scaled":
            return x @ (self.w * self.gain)
        assert self.kind == "viewed"
        return F.conv1d(x.transpose(-1, -2), self.w.unsqueeze(-1)).transpose(-1, -2)


@pytest.mark.parametrize("kind", ["linear", "right", "transposed", "left", "mm", "addmm", "scaled", "viewed"])
@pytest.mark.parametrize("points", [1, 3])
def test_products(kind: str, points: int) -> None:
    torch.manual_seed(0)
    model, x = Products(kind), torch.randn(points, 2, 4, dtype=torch.float64)
    axis = 0 if model.w.shape == (4, 5) else 1
    (read,) = readings(model, {"w": (sc.Slot("w", axis),)}, x)
    assert read.places.tolist() == [0, 1, 2, 3]
    found = output(read)
    torch.testing.assert_close(found.transpose(1, 2).flatten(0, 1), model(x).reshape(-1, 5))


def test_a_layer_called_twice_is_read_twice() -> None:
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    assert len(readings(model, {"0.weight": (sc.Slot("0.weight", 1),)}, torch.randn(2, 3))) == 2


def test_only_what_is_wanted_is_read() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    assert [read.slot for read in readings(model, {"1.weight": (sc.Slot("1.weight", 1),)}, torch.randn(2, 3))] == [
        sc.Slot("1.weight", 1)
    ]


def test_a_rewritten_program_is_read_like_the_module() -> None:
    from secateur.sensitivity import runnable

    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)).eval(), torch.randn(2, 3, 8, 8)
    graph = sc.trace(model, x, output="graph")
    wanted = _Tally(graph, "max", None).wanted
    (one,), (other,) = (readings(network, wanted, x) for network in (model, runnable(model, graph)))
    torch.testing.assert_close(output(one), output(other))
