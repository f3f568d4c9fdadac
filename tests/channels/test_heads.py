"""The axis of the heads is the one that attention leaves alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from secateur.channels.heads import heads_axis
from secateur.channels.program import export
from secateur.network.operations import op_name
from support.cases import Net

N, LENGTH, HEADS, WIDTH = 2, 5, 4, 3


def fused(x: Tensor) -> Tensor:
    q, k, v = x.view(N, LENGTH, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4).unbind(0)
    return F.scaled_dot_product_attention(q, k, v)


def width_first(x: Tensor) -> Tensor:
    q, k, v = x.view(N, LENGTH, WIDTH, HEADS, 3).permute(4, 0, 3, 1, 2)
    return F.scaled_dot_product_attention(q, k, v)


def written_out(x: Tensor) -> Tensor:
    x = F.layer_norm(x.view(N, LENGTH, 3, HEADS, WIDTH), (WIDTH,))
    q, k, v = (x.select(2, part).transpose(1, 2) for part in range(3))
    return (0.5 * q @ k.transpose(-2, -1)).softmax(-1) @ v


def no_attention(x: Tensor) -> Tensor:
    return x.view(N, LENGTH, 3, HEADS, WIDTH).transpose(2, 3).sum(3)


@pytest.mark.parametrize(
    ("run", "axes", "found"),
    [(fused, (2, 3, 4), 3), (width_first, (2, 3, 4), 3), (written_out, (2, 3, 4), 3), (no_attention, (2, 3, 4), None)],
)
def test_the_axis_of_the_heads(run: Callable[[Tensor], Tensor], axes: tuple[int, ...], found: int | None) -> None:
    split = _first_view(Net(lambda m, x: run(m.layer(x)), layer=nn.Linear(7, 3 * HEADS * WIDTH)))
    assert heads_axis(split, axes, tuple(split.meta["val"].shape)) == found


def _first_view(network: nn.Module) -> fx.Node:
    program = export(network.eval(), torch.randn(N, LENGTH, 7))
    return next(node for node in program.graph.nodes if op_name(node) in ("view", "reshape"))
