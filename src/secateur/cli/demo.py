"""`secateur demo`: prune a trained LeNet-5 on real digits, without a download."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.rule import Rule
from rich.text import Text
from torch import Tensor, nn

import secateur as sc
from secateur.cli.screen import Screen
from secateur.embedded import digits, lenet5
from secateur.zoo.lenet import LeNet5

# Of 30, 20, 10, 5 and 3%, the smallest with which all calibration digits are still classified correctly; with 3% they
# are 99.8%. The test digits had no part in the choice.
BUDGET = {"params": "5%"}
TIMED = 64  # digits in the timed batch


def demo(*, screen: Screen) -> None:
    """Prune a trained LeNet-5 on handwritten digits, and show its size, speed and accuracy before and after."""
    record = run(Console(quiet=screen.quiet or screen.as_json))
    if screen.as_json:
        screen.show(record)


def run(console: Console, *, runs: int = 30, trials: int = 10) -> dict[str, Any]:
    """Run the demonstration on a console, and return its figures.

    >>> run(rich.console.Console())["accuracy"]

    Args:
        runs: number of timed passes.
        trials: number of networks with randomly chosen filters to compare with.
    """
    model, images, labels = lenet5(), *digits("test")
    calibration = digits("calibration")[0]

    _heading(console, "1. A trained network")
    before = accuracy(model, images, labels)
    console.print(
        f"LeNet-5 has {sc.cost(model, images[:1])}. It classifies [bold]{before:.2%}[/bold] of {len(labels):,} test "
        "digits of MNIST correctly."
    )

    _heading(console, f"2. Prune it: {BUDGET['params']} of the parameters may remain")
    with console.status("tracing channels, scoring them, cutting, repairing"):
        res = sc.prune(model, calibration, BUDGET, samples=None)
    console.print(
        f"The importance of each channel was measured on {res.samples} other digits. The channels that the next layer "
        "needs least are removed, from the groups where they cost most. Then the remaining layers are refitted by "
        "least squares, without labels and without training.\n"
    )
    console.print(res.group_table())

    _heading(console, "3. Before and after")
    with console.status("timing both networks"):
        slow, fast = (sc.latency(each, images[:TIMED], runs=runs, threads=1) for each in (model, res.model))
    after = accuracy(res.model, images, labels)
    with console.status("removing random filters, to compare"):
        others = _random_networks(model, calibration, res, trials)
        at_random = [accuracy(small, images, labels) for small in others]
    console.print(res.cost_table(times=(slow, fast)))
    console.print(f"[dim]latency: {TIMED} digits, median of {slow.runs} runs, 1 thread[/dim]\n")
    console.print(
        f"Accuracy on the test digits: {before:.2%} before, [bold]{after:.2%}[/bold] after, without any retraining. "
        f"With the same group sizes, but randomly chosen filters and the same repair: {sum(at_random) / trials:.2%} "
        f"on average over {trials} choices (from {min(at_random):.2%} to {max(at_random):.2%})."
    )

    _heading(console, "4. What is guaranteed, and what is not")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "small.safetensors")
        sc.save(path, res)
        size = path.stat().st_size
        loaded = sc.load(path, LeNet5()).eval()
    with torch.no_grad():
        same = torch.equal(loaded(images), res.model(images))
    outputs = "the same outputs, bit for bit" if same else "DIFFERENT outputs, which is a bug"
    for head, text in (
        (
            "Verified:",
            "before the repair, the cut network computes the same as the original with the removed channels zeroed. "
            f"Their outputs differ by {res.verification:.0e} (relative), which is rounding error.",
        ),
        ("Saved and loaded:", f"the file has {size / 1e3:,.0f} kB. Loaded into a fresh LeNet-5 it gives {outputs}."),
        (
            "Not guaranteed:",
            "the accuracy. It was measured on digits that neither training nor pruning has seen; `secateur certify` "
            "turns such a measurement into a bound with a stated confidence.",
        ),
    ):
        console.print(Text.assemble((head, "bold"), " ", text), end="\n\n")
    accuracies = {"before": before, "after": after, "at_random": at_random}
    return res.info | {"accuracy": accuracies, "same_after_loading": same}


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of images whose class has the highest score.

    >>> accuracy(lenet5(), *digits("test"))
    """
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in zip(images.split(500), labels.split(500)))
    return right / len(labels)


def _random_networks(model: nn.Module, calibration: Tensor, res: sc.Pruned, trials: int) -> list[nn.Module]:
    """Return networks of the same sizes with random filters, repaired in the same way."""
    graph = sc.trace(model, calibration[:1])
    networks = []
    for seed in range(trials):
        rng = torch.Generator().manual_seed(seed)
        kept = {row.name: torch.randperm(row.before, generator=rng)[: row.after].tolist() for row in res.rows}
        plan = sc.Plan.keeping(graph, kept)
        networks.append(sc.repair(sc.cut(model, plan), model, calibration, plan))
    return networks


def _heading(console: Console, text: str) -> None:
    console.print("", Rule(text, align="left"), "", sep="\n")
