"""The checks of the coverage benchmark: the same for every tool."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

FLOAT32_LIMIT, FLOAT64_LIMIT = 1e-4, 1e-9
VACUOUS = 1e-3  # a masked network this close to the original proves nothing
CUT_SHARE = 0.3  # a network counts as cut when this share of its parameters is gone


def tensors(output: Any) -> list[Tensor]:
    """Return the floating point tensors of any output: tensor, tuple, dict or named tuple."""
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


@torch.no_grad()
def difference(left: nn.Module, right: nn.Module, example: Tensor) -> float:
    """Return the largest |left - right| over the largest |right|, for all outputs; inf for NaN or other shapes."""
    worst = 0.0
    ours, theirs = tensors(left(example)), tensors(right(example))
    if [tuple(t.shape) for t in ours] != [tuple(t.shape) for t in theirs]:
        return float("inf")
    for a, b in zip(ours, theirs, strict=True):
        relative = float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))
        worst = max(worst, relative if relative == relative else float("inf"))
    return worst


def agree(left: nn.Module, right: nn.Module, example: Tensor) -> tuple[float, bool]:
    """Compare two networks in float32 and, where the difference may be rounding, again in float64."""
    found = difference(left, right, example)
    if found <= FLOAT32_LIMIT:
        return found, True
    found = difference(left.double(), right.double(), example.double())
    left.float(), right.float()
    return found, found <= FLOAT64_LIMIT


def trains(model: nn.Module, example: Tensor) -> None:
    """Run one training step, forward and backward; an exception of the network is not caught."""
    model.train()
    torch.stack([t.float().square().mean() for t in tensors(model(example))]).sum().backward()
    model.zero_grad()
    model.eval()


def parameters(model: nn.Module) -> int:
    """Count the parameters, shared ones once."""
    return sum(p.numel() for p in model.parameters())


def macs(model: nn.Module, example: Tensor) -> int:
    """Count the multiply-adds of one forward pass."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(example)
    return counter.get_total_flops() // 2
