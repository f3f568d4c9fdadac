"""Sums over all patches: the same as from the patches themselves."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from secateur.network.layer_calls import FunctionCall, LayerCall, layer_call
from secateur.refit.shifts import Windows


def convolution(dims: int, x: torch.Tensor, weight: torch.Tensor, **options: object) -> LayerCall:
    function = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    found = layer_call(FunctionCall(0, f"conv{dims}d", function, (x, weight), options))
    assert found is not None
    return found


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    dims=st.integers(1, 3),
    samples=st.integers(1, 3),
    channels=st.integers(1, 3),
    data=st.data(),
)
def test_sums_over_patches_are_those_of_the_patches(
    seed: int, dims: int, samples: int, channels: int, data: st.DataObject
) -> None:
    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(data.draw(st.integers(low, high)) for _ in range(dims))

    torch.manual_seed(seed)
    kernel, dilation, padding = each(1, 4), each(1, 2), each(0, 3)
    reach = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    space = [n + max(0, r - 2 * p) for n, r, p in zip(each(1, 7), reach, padding, strict=True)]
    x, weight = torch.randn(samples, channels, *space).double(), torch.randn(2, channels, *kernel).double()
    call = convolution(dims, x, weight, padding=padding, dilation=dilation)
    windows = Windows.of(call)
    if windows is None:
        assert all(k == 1 for k in kernel)
        return
    rows = call.columns()[0].flatten(0, 1)
    torch.testing.assert_close(windows.squares(x), rows.T @ rows)
    torch.testing.assert_close(windows.sums(x), rows.sum(0))
    t = torch.randn(samples, 2, *windows.positions).double()
    torch.testing.assert_close(windows.products(x, t), t.flatten(2).movedim(1, -1).flatten(0, 1).T @ rows)


def test_a_kernel_of_three_by_three_takes_thirteen_products() -> None:
    x, weight = torch.randn(2, 4, 30, 30), torch.randn(4, 4, 3, 3)
    windows = Windows.of(convolution(2, x, weight, padding=1))
    assert windows is not None
    assert windows.work == pytest.approx(13 * 32**2 / 30**2)


@pytest.mark.parametrize("options", [{"stride": 2}, {"groups": 2}])
def test_other_layers_have_none(options: dict[str, int]) -> None:
    weight = torch.randn(4, 4 // options.get("groups", 1), 3, 3)
    assert Windows.of(convolution(2, torch.randn(2, 4, 8, 8), weight, **options)) is None
