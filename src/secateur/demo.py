"""The demonstration that `make demo` runs: inspect a network, cut it, prove the cut. It downloads nothing."""

from __future__ import annotations

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from torch import Tensor, nn

from secateur.cost import Cost, Latency, cost, latency
from secateur.plan import random_plan
from secateur.report.groups import as_table
from secateur.surgery import cut, tolerance_for, verify
from secateur.trace import trace

SHAPE = (1, 3, 64, 64)


class Block(nn.Module):
    """Two convolutions beside a shortcut; the sum ties the channels of all blocks of a stage together."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block."""
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class Network(nn.Module):
    """A residual network for small images, 0.7 million parameters, in three stages of two blocks."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(32)
        self.stage1 = nn.Sequential(Block(32, 32, 1), Block(32, 32, 1))
        self.stage2 = nn.Sequential(Block(32, 64, 2), Block(64, 64, 1))
        self.stage3 = nn.Sequential(Block(64, 128, 2), Block(128, 128, 1))
        self.fc = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the class scores of a batch of images."""
        x = torch.relu(self.bn(self.stem(x)))
        x = self.stage3(self.stage2(self.stage1(x)))
        return self.fc(x.mean((2, 3)))


def network(seed: int = 0) -> Network:
    """Make the network with weights and statistics that are random, as no fresh batch norm has them.

    >>> network()(torch.zeros(1, 3, 64, 64)).shape
    torch.Size([1, 10])
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Network()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias, 0, 0.3)
                nn.init.normal_(module.running_mean, 0, 0.3)  # type: ignore[arg-type]
                nn.init.uniform_(module.running_var, 0.5, 1.5)  # type: ignore[arg-type]
    return model.eval()


def run(console: Console, *, runs: int = 30) -> float:
    """Show the whole road on `console`; give the figure of the proof.

    >>> run(rich.console.Console())
    """
    model, example = network(), torch.zeros(SHAPE)

    _heading(console, "1. Inspect: which channels there are")
    with console.status("tracing channels"):
        graph, before = trace(model, example), cost(model, example)
    console.print(as_table(graph, before))

    _heading(console, "2. Cut: half of every group, at random")
    plan = random_plan(graph, kept=0.5, seed=0)
    small = cut(model, plan)
    with console.status("timing both networks"):
        slow, fast = (latency(each, example, runs=runs, threads=1) for each in (model, small))
    console.print(_comparison(before, cost(small, example), slow, fast))

    _heading(console, "3. Prove: the cut network computes what it should")
    data = torch.randn(16, *SHAPE[1:], generator=torch.Generator().manual_seed(1))
    with console.status("comparing both networks"):
        difference = verify(model, plan, [data], tolerance=tolerance_for(model))
    console.print(
        f"Largest relative difference on {len(data)} random images: [bold]{difference:.1e}[/bold]\n\n"
        "The cut network is set beside the original at full size, with the same channels silenced. "
        "Rounding alone makes float32 results differ by about 1e-7 per operation, so a figure this small means that "
        "the cut removed these filters and changed nothing else. It does not say how accurate the network still "
        "is: here the filters were chosen at random.",
    )
    return difference


def _heading(console: Console, text: str) -> None:
    console.print("", Rule(text, align="left"), "", sep="\n")


def _comparison(before: Cost, after: Cost, slow: Latency, fast: Latency) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("")
    for heading in ("before", "after", "left"):
        table.add_column(heading, justify="right")
    for name, old, new in (("parameters", before.params, after.params), ("MACs", before.macs, after.macs)):
        table.add_row(name, f"{old:,}", f"{new:,}", f"{new / old:.0%}")
    ratio = fast.median_ms / slow.median_ms
    table.add_row("latency, median", f"{slow.median_ms:.2f} ms", f"{fast.median_ms:.2f} ms", f"{ratio:.0%}")
    table.caption = f"one image, {slow.runs} runs, {slow.threads} thread"
    table.caption_justify = "left"
    return table
