"""What the small networks are made of, and the table that they are entered in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Groups = dict[str, int]  # prunable group -> its number of units
Conv = nn.Conv2d


class Net(nn.Module):
    """A module with the given parts and forward."""

    def __init__(self, run: Callable[..., Any], /, **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x: Tensor, *more: Any) -> Any:
        return self.run(self, x, *more)


@dataclass(frozen=True)
class Case:
    """A network and the groups that tracing must find in it, by output."""

    make: Callable[[], nn.Module]
    module: Groups
    graph: Groups
    example: Any = IMAGE


CASES: dict[str, Case] = {}


def case(module: Groups, graph: Groups | None = None, example: Any = IMAGE) -> Callable[[Callable[[], nn.Module]], Any]:
    """Enter a function that makes a network into `CASES`; `graph` is needed where it differs from `module`."""

    def add(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        CASES[make.__name__] = Case(make, module, module if graph is None else graph, example)
        return make

    return add


def build(name: str) -> tuple[nn.Module, Any]:
    """Return a network in double precision with random weights, statistics and affine parameters, and its example."""
    case = CASES[name]
    network = case.make().double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, tensor in [*network.named_parameters(), *network.named_buffers()]:
            if tensor.is_floating_point():
                noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
                tensor.copy_(noise.abs() + 0.5 if key.endswith("var") else noise * 0.5 + 0.1)
    return network, case.example


def chain(*, width: int = 8) -> dict[str, nn.Module]:
    """Return two convolutions in a row."""
    return {"a": Conv(3, width, 1), "b": Conv(width, 5, 1)}
