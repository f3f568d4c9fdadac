"""Residual blocks, and the ways to write their addition."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support.cases import Net

Conv = nn.Conv2d
X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def block(shortcut: Callable[[Net, Tensor], Tensor], add: Callable[[Tensor, Tensor], Tensor], first: bool) -> Net:
    """Return a residual block whose shortcut is evaluated before or after the other path."""

    def run(m: Net, x: Tensor) -> Tensor:
        skip = shortcut(m, x) if first else None
        y = m.n2(m.b(F.relu(m.n1(m.a(x)), inplace=True)))
        return m.head(F.relu(add(y, shortcut(m, x) if skip is None else skip)).mean((2, 3)))

    return Net(
        run, a=Conv(3, 6, 3, padding=1, bias=False), n1=nn.BatchNorm2d(6), b=Conv(6, 3, 3, padding=1, bias=False),
        n2=nn.BatchNorm2d(3), down=nn.Sequential(Conv(3, 3, 1), nn.BatchNorm2d(3)), head=nn.Linear(3, 2),
    )  # fmt: skip


def in_place(y: Tensor, skip: Tensor) -> Tensor:
    y += skip
    return y


def in_place_unbound(y: Tensor, skip: Tensor) -> Tensor:
    y.add_(skip)
    return y


ADDS: list[Callable[[Tensor, Tensor], Tensor]] = [
    torch.add, lambda y, s: y + s, lambda y, s: s + y, lambda y, s: s.add(y), in_place, in_place_unbound,
]  # fmt: skip
