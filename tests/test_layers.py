"""One call of a layer taken apart: its columns times its weights are what torch makes, for every kind of layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cases import Net
from torch import Tensor, nn

from secateur.layers import AtLayers, LayerCall, Run, places, spread, take_apart

pytestmark = pytest.mark.filterwarnings("ignore:Using padding=.same. with even kernel")  # torch's own

LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 4), (5, 6)),
    "linear without bias": (lambda: nn.Linear(6, 4, bias=False), (5, 6)),
    "linear over a sequence": (lambda: nn.Linear(6, 4), (5, 7, 6)),
    "linear over an image": (lambda: nn.Linear(6, 4), (5, 3, 2, 6)),
    "conv1d": (lambda: nn.Conv1d(6, 4, 3, 2, 1), (5, 6, 11)),
    "conv1d dilated": (lambda: nn.Conv1d(6, 4, 3, dilation=3, bias=False), (5, 6, 11)),
    "conv2d": (lambda: nn.Conv2d(6, 4, 3, padding=1), (5, 6, 7, 8)),
    "conv2d uneven": (lambda: nn.Conv2d(6, 4, (2, 5), (1, 3), (1, 2), (3, 1)), (5, 6, 7, 8)),
    "conv2d beyond its stride": (lambda: nn.Conv2d(6, 4, 1, 3), (5, 6, 7, 8)),
    "conv2d grouped": (lambda: nn.Conv2d(6, 9, 3, padding=1, groups=3), (5, 6, 7, 8)),
    "conv2d depthwise": (lambda: nn.Conv2d(6, 12, 3, 2, groups=6), (5, 6, 7, 8)),
    "conv2d same": (lambda: nn.Conv2d(6, 4, (4, 3), padding="same", dilation=(1, 2)), (5, 6, 7, 8)),
    "conv2d valid": (lambda: nn.Conv2d(6, 4, 3, padding="valid"), (5, 6, 7, 8)),
    "conv2d circular": (lambda: nn.Conv2d(6, 4, 3, padding=2, padding_mode="circular"), (5, 6, 7, 8)),
    "conv3d": (lambda: nn.Conv3d(4, 6, (1, 2, 3), (2, 1, 2), (0, 1, 1), groups=2), (3, 4, 3, 4, 5)),
    "transposed 1d": (lambda: nn.ConvTranspose1d(6, 4, 4, 3, 1, output_padding=2), (5, 6, 7)),
    "transposed 2d": (lambda: nn.ConvTranspose2d(6, 4, 3, 2, 1, output_padding=1), (5, 6, 4, 3)),
    "transposed 2d cropped": (lambda: nn.ConvTranspose2d(6, 4, 1, padding=1), (5, 6, 4, 5)),
    "transposed 2d grouped": (lambda: nn.ConvTranspose2d(6, 9, (3, 2), (2, 1), groups=3, bias=False), (5, 6, 4, 3)),
    "transposed 2d dilated": (lambda: nn.ConvTranspose2d(6, 4, 3, 2, 2, 1, dilation=2, groups=2), (5, 6, 4, 3)),
    "transposed 3d": (lambda: nn.ConvTranspose3d(2, 4, 2, (2, 1, 2), groups=2), (3, 2, 2, 3, 2)),
}


def taken(layer: nn.Module, x: Tensor) -> tuple[LayerCall, Tensor]:
    """The only layer call that a module makes, and what it gives."""
    calls: list[LayerCall] = []

    def act(name: str, call: LayerCall, run: Run) -> Tensor:
        assert name == "weight"
        calls.append(call)
        return run(None)

    with torch.no_grad(), AtLayers(layer, act):
        made = layer(x)
    (call,) = calls
    return call, made


@pytest.mark.parametrize("kind", LAYERS)
def test_columns_times_weights_are_what_the_layer_makes(kind: str) -> None:
    make, shape = LAYERS[kind]
    layer, x = make().double(), torch.randn(shape).double()
    call, made = taken(layer, x)
    wanted = call.as_places(made)  # [points, outputs, places]
    columns, weight = call.columns(), call.plain(layer.weight.detach())
    groups = getattr(layer, "groups", 1)
    assert call.groups == groups and call.outputs == wanted.shape[1] and len(weight) == groups
    assert columns.shape == (groups, shape[0], wanted.shape[2], weight.shape[2])
    per_group = [columns[g] @ weight[g].T for g in range(groups)]  # [points, places, outputs of a group]
    found = torch.cat(per_group, 2).transpose(1, 2)
    if layer.bias is not None:
        assert call.bias is layer.bias
        found = found + layer.bias.detach()[:, None]
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert torch.equal(call.layered(weight), layer.weight)
    torch.testing.assert_close(call.plain(call.layered(weight * 2)), weight * 2)


@pytest.mark.parametrize("kind", LAYERS)
def test_some_places_are_some_of_all(kind: str) -> None:
    make, shape = LAYERS[kind]
    call, made = taken(make(), torch.randn(shape))
    count = call.as_places(made).shape[2]
    chosen = torch.randperm(count)[: max(1, count // 3)]
    assert torch.equal(call.columns(chosen), call.columns()[:, :, chosen])
    assert call.columns(chosen[:0]).shape[2] == 0


@pytest.mark.parametrize("kind", LAYERS)
def test_the_layer_runs_with_another_weight(kind: str) -> None:
    make, shape = LAYERS[kind]
    layer, x = make().double(), torch.randn(shape).double()
    with torch.no_grad(), AtLayers(layer, lambda name, call, run: run(call.weight * 3)):
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
    met: list[tuple[str, tuple[int, ...]]] = []

    def act(name: str, call: LayerCall, run: Run) -> Tensor:
        met.append((name, tuple(call.input.shape)))
        return run(None if name != "w" else torch.zeros_like(network.w))

    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad(), AtLayers(network, act):
        found = network(x)
    assert [name for name, _ in met] == ["a.weight", "w", "b.weight", "c.weight"]  # the product is nobody's weight
    assert met[1][1] == (2, 4, 6, 6)
    with torch.no_grad():
        network.w.zero_()
        torch.testing.assert_close(found, network(x))


def test_a_tied_weight_goes_by_its_first_name_each_time() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    network[1].weight = network[0].weight
    met: list[str] = []

    def act(name: str, call: LayerCall, run: Run) -> Tensor:
        met.append(name)
        return run(None)

    with AtLayers(network, act):
        network(torch.randn(2, 4))
    assert met == ["0.weight", "0.weight"]


def test_an_exported_program_is_met_alike() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Flatten(), nn.Linear(64, 2)).double()
    x = torch.randn(2, 3, 8, 8).double()
    program = torch.export.export(network, (x,), strict=False).module()
    for one in (network, program):
        columns: list[Tensor] = []

        def act(name: str, call: LayerCall, run: Run, columns: list[Tensor] = columns) -> Tensor:
            columns.append(call.columns())
            return run(None)

        with torch.no_grad(), AtLayers(one, act):
            one(x)
        if one is network:
            wanted = columns
    assert len(wanted) == 2 and all(torch.equal(a, b) for a, b in zip(columns, wanted, strict=True))


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.Conv2d(3, 4, 1), (3, 5, 5)), (nn.Linear(3, 4), (3,)), (nn.Conv1d(3, 4, 1), (3, 5))]
)
def test_a_point_without_its_batch_axis_is_left_to_torch(layer: nn.Module, shape: tuple[int, ...]) -> None:
    def act(name: str, call: LayerCall, run: Run) -> Tensor:
        raise AssertionError(name)

    x = torch.randn(shape)
    with torch.no_grad(), AtLayers(layer, act):
        found = layer(x)
    assert torch.equal(found, layer(x))


def test_other_calls_are_not_layers() -> None:
    x = torch.randn(2, 3)
    assert take_apart("matmul", (x, x.T), {}) is None
    assert take_apart("conv_tbc", (x, x), {}) is None


def test_windows_are_counted() -> None:
    for n, k, s, d in [(7, 3, 1, 1), (8, 3, 2, 1), (9, 2, 3, 4), (5, 5, 2, 1)]:
        starts = [start for start in range(0, n, s) if start + d * (k - 1) < n]
        assert places((n,), (k,), (s,), (d,)) == (len(starts),)
    assert spread(3, 2) == spread((3,), 2) == spread([3, 3], 2) == (3, 3)
