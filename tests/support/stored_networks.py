"""The networks in tests/fixtures: how to build each, how its file was made, and the outputs that it must always have.

python tests/support/stored_networks.py     # adds missing files; existing ones are never written again

format2.safetensors and certificate1.json were written by version 0.1, from `sc.prune(Normed(), ...)`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import secateur as sc
from secateur.storage.checkpoint import VERSION
from secateur.zoo import LeNet5Classic

FOLDER = Path(__file__).parents[1] / "fixtures"
OUTPUTS = FOLDER / "outputs.json"


class Normed(nn.Module):
    """A conv, a norm, a scale that is a buffer, and a linear layer behind a flatten."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, padding=1)
        self.n = nn.BatchNorm2d(8)
        self.register_buffer("scale", torch.rand(8, 1, 1))
        self.b = nn.Conv2d(8, 6, 3, stride=2)
        self.fc = nn.Linear(6 * 3 * 3, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.b(F.relu(self.n(self.a(x)) * self.scale))).flatten(1))


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 1)
        self.b = nn.Conv2d(8, 8, 1, bias=False)
        self.c = nn.Conv2d(8, 8, 1, bias=False)
        self.d = nn.Conv2d(8, 5, 1)
        self.c.weight = self.b.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.d(F.relu(self.c(F.relu(self.b(F.relu(self.a(x)))))))


class Split(nn.Module):
    """A network with hard-coded sizes in forward, which only `output="graph"` can cut."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 1)
        self.b = nn.Conv2d(8, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.cat([part.relu() for part in self.a(x).split([3, 5], 1)], 1))


@dataclass(frozen=True)
class Stored:
    """One file of the fixtures."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = (1, 3, 8, 8)
    output: Any = "module"
    scaled: bool = False
    kind: torch.dtype = torch.float32
    kept: float = 0.5
    format: str = "2"
    architecture: str | None = None

    @property
    def input(self) -> Tensor:
        """Return the same numbers everywhere, without a random generator."""
        count = torch.Size(self.shape).numel()
        return (torch.arange(count, dtype=torch.float64) * 0.37).sin().reshape(self.shape).to(self.kind)


STORED = {
    "plain": Stored(Normed),
    "scales": Stored(Normed, scaled=True),
    "tied": Stored(Tied, shape=(1, 3, 2, 2)),
    "graph": Stored(Split, shape=(2, 3, 2, 2), output="graph"),
    "double": Stored(Normed, kind=torch.float64),
    "named": Stored(LeNet5Classic, shape=(2, 1, 28, 28), kept=0.25, architecture="zoo:lenet5-classic"),
    "format1": Stored(Normed, shape=(2, 3, 8, 8), format="1"),
    "format2": Stored(Normed, shape=(2, 3, 8, 8)),
    "format3": Stored(Normed, shape=(2, 3, 8, 8), format="3"),
}


def cut_network(stored: Stored, seed: int = 0) -> tuple[nn.Module, sc.Plan]:
    """Return the cut network of a file with random weights, and its plan."""
    torch.manual_seed(seed)
    network = stored.make().to(stored.kind).eval()
    graph = sc.trace(network, stored.input, output=stored.output)
    plan = sc.random_plan(graph, stored.kept)
    if stored.scaled:
        kept = {group.name: group.kept for group in plan.groups}
        plan = sc.Plan.keeping(graph, kept, {name: [1.25 + 0.5 * u for u in units] for name, units in kept.items()})
    small = sc.cut(network, plan)
    with torch.no_grad():
        for name, tensor in small.state_dict().items():
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 1.5) if name.endswith("var") else tensor.normal_(0, 0.5)
    return small, plan


def answer(stored: Stored, network: nn.Module) -> list[float]:
    """Return the outputs of a network for the input of its file."""
    with torch.no_grad():
        return network.eval()(stored.input).flatten().tolist()


def main() -> None:
    """Write missing files."""
    FOLDER.mkdir(exist_ok=True)
    outputs = json.loads(OUTPUTS.read_text()) if OUTPUTS.exists() else {}
    for name, stored in STORED.items():
        path = FOLDER / f"{name}.safetensors"
        if path.exists() or stored.format != VERSION:
            continue
        small, plan = cut_network(stored)
        note = {"note": f"the {name} network of tests/support/stored_networks.py"}
        sc.save(path, small, plan, architecture=stored.architecture, info=note)
        outputs[name] = answer(stored, small)
        OUTPUTS.write_text(json.dumps(outputs, indent=1) + "\n")


if __name__ == "__main__":
    main()
