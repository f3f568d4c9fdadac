"""The record of a layer call: its columns times its weights are the output of torch, for every kind of layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur.network.layer_calls import FunctionCall, LayerCall, count_positions, layer_call, per_axis
from secateur.network.observer import LayerObserver

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


def observed(layer: nn.Module, x: Tensor) -> tuple[LayerCall, Tensor]:
    """The only layer call of a module, and its output."""
    calls: list[LayerCall] = []

    def act(call: LayerCall, function: FunctionCall) -> Tensor:
        assert call.name == "weight" and call.refittable
        calls.append(call)
        return function.run()

    with torch.no_grad(), LayerObserver(layer, act):
        output = layer(x)
    (call,) = calls
    return call, output


def parsed(name: str, *args: Any, weights: Any = None) -> LayerCall | None:
    return layer_call(FunctionCall(0, name, getattr(torch, name, torch.relu), args, {}), weights)


@pytest.mark.parametrize("kind", LAYERS)
def test_columns_times_weights_are_the_output_of_the_layer(kind: str) -> None:
    make, shape = LAYERS[kind]
    layer, x = make().double(), torch.randn(shape).double()
    call, output = observed(layer, x)
    wanted = call.by_position(output)  # [samples, outputs, positions]
    columns, weight = call.columns(), call.as_matrix(layer.weight.detach())
    groups = getattr(layer, "groups", 1)
    assert call.groups == groups and call.outputs == wanted.shape[1] and len(weight) == groups
    assert columns.shape == (groups, shape[0], wanted.shape[2], weight.shape[2])
    per_group = [columns[g] @ weight[g].T for g in range(groups)]  # [samples, positions, outputs of a group]
    found = torch.cat(per_group, 2).transpose(1, 2)
    if layer.bias is not None:
        assert call.bias is layer.bias
        found = found + layer.bias.detach()[:, None]
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert torch.equal(call.from_matrix(weight), layer.weight)
    torch.testing.assert_close(call.as_matrix(call.from_matrix(weight * 2)), weight * 2)


@pytest.mark.parametrize("kind", LAYERS)
def test_chosen_positions_are_some_of_all(kind: str) -> None:
    make, shape = LAYERS[kind]
    call, output = observed(make(), torch.randn(shape))
    count = call.by_position(output).shape[2]
    chosen = torch.randperm(count)[: max(1, count // 3)]
    assert torch.equal(call.columns(chosen), call.columns()[:, :, chosen])
    assert call.columns(chosen[:0]).shape[2] == 0


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.Conv2d(3, 4, 1), (3, 5, 5)), (nn.Linear(3, 4), (3,)), (nn.Conv1d(3, 4, 1), (3, 5))]
)
def test_a_sample_without_its_batch_axis_is_a_batch_of_one_that_cannot_be_refitted(
    layer: nn.Module, shape: tuple[int, ...]
) -> None:
    x = torch.randn(shape)
    call = parsed("linear" if x.dim() == 1 else f"conv{x.dim() - 1}d", x, layer.weight, layer.bias)
    assert call is not None and not call.refittable
    assert torch.equal(call.input, x[None])


def test_other_calls_are_not_layers() -> None:
    x = torch.randn(2, 3)
    assert parsed("matmul", x, x.T) is None  # without a weight among the two
    assert parsed("conv_tbc", x, x) is None
    assert parsed("linear", x, torch.randn(3)) is None  # a vector is no layer with outputs
    assert parsed("linear", x, torch.randn(4, 3)) is not None
    assert parsed("linear", x, torch.randn(4, 3), weights={}) is None


def test_positions_are_counted() -> None:
    for n, k, s, d in [(7, 3, 1, 1), (8, 3, 2, 1), (9, 2, 3, 4), (5, 5, 2, 1)]:
        starts = [start for start in range(0, n, s) if start + d * (k - 1) < n]
        assert count_positions((n,), (k,), (s,), (d,)) == (len(starts),)
    assert per_axis(3, 2) == per_axis((3,), 2) == per_axis([3, 3], 2) == (3, 3)
