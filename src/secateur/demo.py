"""The demonstration that `make demo` runs: prune a trained LeNet-5 on real digits. It downloads nothing."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.rule import Rule
from rich.text import Text
from torch import Tensor, nn

from secateur.checkpoint import load, save
from secateur.cost import cost, latency
from secateur.embedded import digits, lenet5
from secateur.plan import Plan
from secateur.prune import Pruned, prune
from secateur.report.pruned import costs, groups
from secateur.surgery import cut
from secateur.trace import trace
from secateur.zoo.lenet import LeNet5

# Of 30, 20 and 10 %, the least that costs under half a point on the calibration digits, of which the whole network
# reads all: 99.8, 98.0 and 85.5 % are left. The test digits had no part in it.
BUDGET = {"params": "30%"}
TIMED = 64  # digits in the batch that is timed


@dataclass(frozen=True)
class Shown:
    """What the demonstration found."""

    result: Pruned
    before: float  # accuracies on the test digits
    after: float
    at_random: list[float]
    same_after_loading: bool


def run(console: Console, *, runs: int = 30, trials: int = 10) -> Shown:
    """Show the whole road on `console`; give what was found.

    >>> run(rich.console.Console())

    runs: passes to time. trials: networks with filters chosen at random to compare with.
    """
    model, images, labels = lenet5(), *digits("test")
    calibration = digits("calibration")[0]
    example = images[:1]

    _heading(console, "1. A trained network")
    before = accuracy(model, images, labels)
    console.print(
        f"LeNet-5 has {cost(model, example)}. It reads [bold]{before:.2%}[/bold] of {len(labels):,} test digits of "
        "MNIST correctly."
    )

    _heading(console, f"2. Prune it: {BUDGET['params']} of the parameters may remain")
    with console.status("tracing channels, measuring their sensitivities, cutting"):
        res = prune(model, calibration, BUDGET, points=None)
    console.print(
        f"How much each channel matters was measured on {res.points} other digits. Each group keeps its most "
        "sensitive channels; how many, one eps for all groups decides.\n"
    )
    console.print(groups(res))

    _heading(console, "3. Before and after")
    with console.status("timing both networks"):
        slow, fast = (latency(each, images[:TIMED], runs=runs, threads=1) for each in (model, res.model))
    after = accuracy(res.model, images, labels)
    with console.status("cutting filters at random, to compare"):
        at_random = [accuracy(small, images, labels) for small in _random_networks(model, example, res, trials)]
    console.print(costs(res, times=(slow, fast)))
    console.print(f"[dim]latency: {TIMED} digits, median of {slow.runs} runs, 1 thread[/dim]\n")
    console.print(
        f"Test digits read correctly: {before:.2%} before, [bold]{after:.2%}[/bold] after, without any retraining. "
        f"With as many filters in each group, but chosen at random: {sum(at_random) / trials:.2%} on average over "
        f"{trials} choices (from {min(at_random):.2%} to {max(at_random):.2%})."
    )

    _heading(console, "4. What this proves, and what it does not")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "small.safetensors")
        save(path, res)
        size = path.stat().st_size
        loaded = load(path, LeNet5()).eval()
    with torch.no_grad():
        same = torch.equal(loaded(images), res.model(images))
    for head, text in _statements(res, size, same).items():
        console.print(Text.assemble((head, "bold"), " ", text), end="\n\n")
    return Shown(res, before, after, at_random, same)


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The fraction of images that the network puts into the right class.

    >>> accuracy(lenet5(), *digits("test"))
    """
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in zip(images.split(500), labels.split(500)))
    return right / len(labels)


def _random_networks(model: nn.Module, example: Tensor, res: Pruned, trials: int) -> list[nn.Module]:
    """Networks of the same sizes, without a choice."""
    graph = trace(model, example)
    networks = []
    for seed in range(trials):
        rng = torch.Generator().manual_seed(seed)
        kept = {row.name: torch.randperm(row.before, generator=rng)[: row.after].tolist() for row in res.rows}
        networks.append(cut(model, Plan.keeping(graph, kept)))
    return networks


def _statements(res: Pruned, size: int, same: bool) -> dict[str, str]:
    shrunk = [row for row in res.rows if row.after < row.before]
    bounds = ", ".join(f"{row.dropped:.2g} in {row.name}" for row in shrunk)
    vacuous = [row.name for row in shrunk if row.dropped >= 1]
    said = f"For {' and '.join(vacuous)} that is 1 or more, which promises nothing. " if vacuous else ""
    return {
        "Verified:": (
            "the cut network computes what the original computes with those channels silenced. Their outputs differ by "
            f"{res.verification:.0e} (relative), which is rounding."
        ),
        "Saved and loaded:": (
            f"the file has {size / 1e3:,.0f} kB. Loaded into a fresh LeNet-5 it gives "
            f"{'the same outputs, bit by bit' if same else 'OTHER outputs, which is a defect'}."
        ),
        "Promised:": (
            "in the layer that reads a group, each sum of contributions changes by at most the fraction dropped: "
            f"{bounds}. {said}Where it is below 1, it holds for inputs in which no channel has a larger share than on "
            "the calibration digits, and for one layer at a time, not for the whole network."
        ),
        "Not promised:": (
            "the accuracy. It was measured, on digits that neither training nor pruning has seen, and a network cut "
            "this far is usually retrained."
        ),
    }


def _heading(console: Console, text: str) -> None:
    console.print("", Rule(text, align="left"), "", sep="\n")
