"""Observers meet every call and every layer of a forward pass, and what they pass on is what the layers compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import secateur as sc
from secateur.network.layer_calls import FunctionCall, GroupCall, LayerCall, convolve
from secateur.network.observer import LayerObserver, Observer, observe_slots
from secateur.surgery.rewrite import runnable
from support.cases import Net

LAYERS = {(0, 1): nn.Conv1d, (0, 2): nn.Conv2d, (0, 3): nn.Conv3d}
LAYERS |= {(1, 1): nn.ConvTranspose1d, (1, 2): nn.ConvTranspose2d, (1, 3): nn.ConvTranspose3d}


def groups_of(model: nn.Module, slots: list[sc.Slot], *inputs: Any) -> list[GroupCall]:
    calls: list[GroupCall] = []
    with torch.no_grad(), observe_slots(model, slots, calls.append):
        model(*inputs)
    return calls


def output(call: GroupCall) -> Tensor:
    return convolve(call.x, call.weight, call.stride, call.dilation)


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
    layer = LAYERS[transposed, dims](2 * groups, 3 * groups, kernel, **settings).double()
    space = [draw(st.integers(5, 7)) for _ in range(dims)]
    return layer, torch.randn(draw(st.integers(1, 3)), 2 * groups, *space).double()


@settings(max_examples=150)
@given(layers(), st.booleans())
def test_convolutions_of_every_kind(case: tuple[nn.Module, Tensor], batched: bool) -> None:
    layer, x = case
    x = x if batched else x[0]
    calls = groups_of(layer, [sc.Slot("weight", 0 if layer.transposed else 1)], x)
    assert len(calls) == layer.groups
    layer.bias = None
    found = torch.cat([output(call) for call in calls], 1)
    torch.testing.assert_close(found if batched else found[0], layer(x))
    channels = torch.cat([call.channels for call in calls])
    assert channels.tolist() == (list(range(2 * layer.groups)) if layer.transposed else [0, 1] * layer.groups)
    for call in calls:
        assert call.positions == output(call).shape[2:]
        windows = call.windows(call.x).flatten(2 + len(call.positions))  # [samples, channels, *positions, kernel]
        summed = torch.einsum("nc...k,ock->no...", windows, call.weight.flatten(2))
        torch.testing.assert_close(summed, output(call))


class Products(nn.Module):
    """The ways in which a matrix of weights can meet an activation."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        shape = (4, 5) if kind in ("right", "keyword", "mm", "addmm", "scaled") else (5, 4)
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
        if self.kind == "keyword":
            return torch.matmul(input=x, other=self.w)
        if self.kind == "mm":
            return torch.mm(x.flatten(0, -2), self.w)
        if self.kind == "addmm":
            return torch.addmm(torch.zeros(5, dtype=x.dtype), x.flatten(0, -2), self.w) * 1.0
        if self.kind == "scaled":
            return x @ (self.w * self.gain)
        assert self.kind == "viewed"
        return F.conv1d(x.transpose(-1, -2), self.w.unsqueeze(-1)).transpose(-1, -2)


@pytest.mark.parametrize(
    "kind", ["linear", "right", "keyword", "transposed", "left", "mm", "addmm", "scaled", "viewed"]
)
@pytest.mark.parametrize("samples", [1, 3])
def test_products(kind: str, samples: int) -> None:
    torch.manual_seed(0)
    model, x = Products(kind), torch.randn(samples, 2, 4, dtype=torch.float64)
    axis = 0 if model.w.shape == (4, 5) else 1
    (call,) = groups_of(model, [sc.Slot("w", axis)], x)
    assert call.channels.tolist() == [0, 1, 2, 3]
    found = output(call)
    torch.testing.assert_close(found.transpose(1, 2).flatten(0, 1), model(x).reshape(-1, 5))


@pytest.mark.parametrize("kind", ["linear", "right", "transposed", "scaled", "viewed"])
def test_only_a_layer_whose_weight_is_a_parameter_itself_can_be_refitted(kind: str) -> None:
    found: list[bool] = []

    def act(call: LayerCall, function: FunctionCall) -> Tensor:
        found.append(call.refittable)
        return function.run()

    model, other, x = Products(kind), Products(kind), torch.randn(3, 2, 4, dtype=torch.float64)
    with LayerObserver(other, act):
        model(x)
    assert found == []
    with LayerObserver(model, act):
        model(x)
    assert found == [kind == "linear"]


def test_a_weight_that_a_conversion_leaves_as_it_is_stays_a_parameter() -> None:
    model = Net(lambda m, x: F.linear(x, m.w.to(x.dtype).contiguous()), w=nn.Parameter(torch.randn(2, 3)))
    refittable: list[bool] = []

    def act(call: LayerCall, function: FunctionCall) -> Tensor:
        refittable.append(call.refittable)
        return function.run()

    for x in (torch.randn(4, 3), torch.randn(4, 3).double()):
        with LayerObserver(model, act):
            model(x)
    assert refittable == [True, False]


def test_a_layer_called_twice_is_met_twice() -> None:
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    assert len(groups_of(model, [sc.Slot("0.weight", 1)], torch.randn(2, 3))) == 2


def test_only_wanted_slots_are_met() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    slot = sc.Slot("1.weight", 1)
    assert [call.slot for call in groups_of(model, [slot], torch.randn(2, 3))] == [slot]
    assert groups_of(model, [sc.Slot("1.weight", 0)], torch.randn(2, 3)) == []  # its outputs, not its inputs


def test_a_rewritten_program_is_met_like_the_module() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)).eval(), torch.randn(2, 3, 8, 8)
    graph = sc.trace(model, x, output="graph")
    slots = [sc.Slot("2.weight", 1)]
    (one,), (other,) = (groups_of(network, slots, x) for network in (model, runnable(model, graph)))
    torch.testing.assert_close(output(one), output(other))


@pytest.mark.parametrize("layer", [nn.Linear(6, 4), nn.Conv2d(6, 4, 3, padding=1), nn.ConvTranspose1d(6, 4, 3)])
def test_the_layer_runs_with_another_weight(layer: nn.Module) -> None:
    layer, x = layer.double(), torch.randn(5, 6, *[6] * (layer.weight.dim() - 2)).double()
    with torch.no_grad(), LayerObserver(layer, lambda call, function: function.run(weight=call.weight * 3)):
        found = layer(x)
    with torch.no_grad():
        layer.weight *= 3
        torch.testing.assert_close(found, layer(x))


def test_every_layer_is_met_once_in_order() -> None:
    def run(m: Net, x: Tensor) -> Tensor:
        x = F.conv2d(input=m.a(x), weight=m.w, padding=1)
        return m.c(m.b(x.mean((2, 3)))) + F.linear(x.mean((2, 3)), weight=m.c.weight * 1)

    parts = {"a": nn.Conv2d(3, 4, 3), "w": nn.Parameter(torch.randn(6, 4, 3, 3)), "b": nn.Linear(6, 6)}
    network = Net(run, **parts, c=nn.Linear(6, 6))
    met: list[tuple[str, bool, tuple[int, ...]]] = []

    def act(call: LayerCall, function: FunctionCall) -> Tensor:
        met.append((call.name, call.refittable, tuple(call.input.shape)))
        return function.run(weight=torch.zeros_like(network.w)) if call.name == "w" else function.run()

    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad(), LayerObserver(network, act):
        found = network(x)
    assert [one[:2] for one in met] == [
        ("a.weight", True), ("w", True), ("b.weight", True), ("c.weight", True), ("c.weight", False),
    ]  # fmt: skip
    assert met[1][2] == (2, 4, 6, 6)
    with torch.no_grad():
        network.w.zero_()
        torch.testing.assert_close(found, network(x))


def test_a_tied_weight_goes_by_its_first_name_each_time() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    network[1].weight = network[0].weight
    met: list[str] = []

    def act(call: LayerCall, function: FunctionCall) -> Tensor:
        met.append(call.name)
        return function.run()

    with LayerObserver(network, act):
        network(torch.randn(2, 4))
    assert met == ["0.weight", "0.weight"]


def test_an_exported_program_is_met_alike() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Flatten(), nn.Linear(64, 2)).double()
    x = torch.randn(2, 3, 8, 8).double()
    program = torch.export.export(network, (x,), strict=False).module()
    columns: list[Tensor] = []

    def act(call: LayerCall, function: FunctionCall) -> Tensor:
        columns.append(call.columns())
        return function.run()

    for one in (network, program):
        with torch.no_grad(), LayerObserver(one, act):
            one(x)
    assert len(columns) == 4 and all(torch.equal(a, b) for a, b in zip(columns[:2], columns[2:], strict=True))


def test_calls_that_return_a_tensor_are_numbered_from_zero_in_every_pass() -> None:
    met: list[tuple[int, str]] = []

    def act(call: FunctionCall) -> Any:
        met.append((call.number, call.name))
        return call.run()

    observer = Observer(act)
    for _ in range(2):
        met.clear()
        with observer:
            first, _ = torch.relu(torch.ones(2, 3)).split(2, 1)
            first.add_(1).sum()
        numbered = [one for one in met if one[1] in ("relu", "split", "add", "sum")]
        assert numbered == [(1, "relu"), (2, "split"), (2, "add"), (3, "sum")]  # ones is the first, split has no number


def test_a_call_runs_with_another_input_or_weight_however_they_are_passed() -> None:
    x, w = torch.randn(2, 3), torch.randn(4, 3)
    wanted = F.linear(x * 2, w * 3)
    for args, kwargs in (((x, w), {}), ((x,), {"weight": w}), ((), {"input": x, "weight": w})):
        call = FunctionCall(0, "linear", F.linear, args, kwargs)
        assert call.input is x and torch.equal(call.run(), F.linear(x, w))
        assert torch.equal(call.run(input=x * 2, weight=w * 3), wanted)
