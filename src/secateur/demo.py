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
from secateur.repair import repair
from secateur.report.pruned import costs, groups
from secateur.surgery import cut
from secateur.trace import trace
from secateur.zoo.lenet import LeNet5

# Of 30, 20, 10, 5 and 3 %, the least with which all calibration digits are still read: 3 % leaves 99.8 %. The test
# digits had no part in it.
BUDGET = {"params": "5%"}
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
    with console.status("tracing channels, weighing them, cutting, repairing"):
        res = prune(model, calibration, BUDGET, points=None)
    console.print(
        f"What each channel is good for was measured on {res.points} other digits. Those go that the next layer can "
        "best do without, where they cost most; then the layers that are left are fitted anew, without labels and "
        "without training.\n"
    )
    console.print(groups(res))

    _heading(console, "3. Before and after")
    with console.status("timing both networks"):
        slow, fast = (latency(each, images[:TIMED], runs=runs, threads=1) for each in (model, res.model))
    after = accuracy(res.model, images, labels)
    with console.status("cutting filters at random, to compare"):
        others = _random_networks(model, calibration, res, trials)
        at_random = [accuracy(small, images, labels) for small in others]
    console.print(costs(res, times=(slow, fast)))
    console.print(f"[dim]latency: {TIMED} digits, median of {slow.runs} runs, 1 thread[/dim]\n")
    console.print(
        f"Test digits read correctly: {before:.2%} before, [bold]{after:.2%}[/bold] after, without any retraining. "
        f"With as many filters in each group, but chosen at random and repaired alike: {sum(at_random) / trials:.2%} "
        f"on average over {trials} choices (from {min(at_random):.2%} to {max(at_random):.2%})."
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


def _random_networks(model: nn.Module, calibration: Tensor, res: Pruned, trials: int) -> list[nn.Module]:
    """Networks of the same sizes, without a choice, repaired in the same way."""
    graph = trace(model, calibration[:1])
    networks = []
    for seed in range(trials):
        rng = torch.Generator().manual_seed(seed)
        kept = {row.name: torch.randperm(row.before, generator=rng)[: row.after].tolist() for row in res.rows}
        plan = Plan.keeping(graph, kept)
        networks.append(repair(cut(model, plan), model, calibration, plan))
    return networks


def _statements(res: Pruned, size: int, same: bool) -> dict[str, str]:
    return {
        "Verified:": (
            "the network as cut computes what the original computes with those channels silenced. Their outputs differ "
            f"by {res.verification:.0e} (relative), which is rounding."
        ),
        "Saved and loaded:": (
            f"the file has {size / 1e3:,.0f} kB. Loaded into a fresh LeNet-5 it gives "
            f"{'the same outputs, bit by bit' if same else 'OTHER outputs, which is a defect'}."
        ),
        "Not promised:": (
            "the accuracy. It was measured, on digits that neither training nor pruning has seen; `secateur certify` "
            "turns such a measurement into a bound with a stated confidence."
        ),
    }


def _heading(console: Console, text: str) -> None:
    console.print("", Rule(text, align="left"), "", sep="\n")
