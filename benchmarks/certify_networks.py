"""What certificates say of real pruned networks, beside what happens on the test set.

python benchmarks/certify_networks.py --data DIR      # writes results/certify_networks.json; about ten minutes

LeNet-5, as it is inside the package: pruned with digits that it was trained on, certified on 6,000 training digits that
neither training nor pruning has seen, set beside the 10,000 of the test set.
ResNet56, as published: it was trained on all 50,000 training images, so that only test images are new to it. A random
half of them certifies; beside it stand the drop on all 10,000, to which these belong, and that on the other half alone.

Each is pruned to parts of its MACs, and as far as a drop of one point can be certified (`budget={"drop": "1%"}`).
Needed: how many points, at the rates of loss and gain that were seen, certify a drop of at most one percentage point,
and of at most one more than was seen.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import mnist
import secateur as sc
from checkpoints import NETWORKS
from environment import RESULTS, prepare, versions, write_whole
from secateur.bounds import points_for_drop
from secateur.data import dataset
from secateur.embedded import as_images, digits, lenet5
from secateur.models import build

RECORD = RESULTS / "certify_networks.json"
DELTA = 1e-3
DROP = "1%"
Pairs = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Case:
    """A network, the points to prune and to certify with, and those that show what really happens."""

    name: str
    model: nn.Module
    calibration: Tensor
    heldout: Pairs
    test: Pairs
    apart: Pairs  # test points that the certificate has not seen
    macs: tuple[float, ...]


def lenet(root: Path) -> Case:
    """The LeNet-5 of the package."""
    heldout, test = (
        batches(as_images(images), labels.long())
        for images, labels in (mnist.load(root, "validation"), mnist.load(root, "test"))
    )
    return Case("LeNet-5", lenet5(), digits("calibration")[0], heldout, test, test, (0.5, 0.3, 0.2, 0.1))


def resnet(root: Path) -> Case:
    """The published ResNet56."""
    file, _, scale = NETWORKS["zoo:resnet56"]
    train, test = (dataset("cifar10", part, root, download=False).scaled(*scale) for part in ("train", "test"))
    chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:1024]
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))
    parts = [batches(test.inputs(which), test.targets[which]) for which in order.chunk(2)]
    model = build("zoo:resnet56", root / "weights" / file)
    return Case("ResNet56", model, train.inputs(chosen), parts[0], [*parts[0], *parts[1]], parts[1], (0.9, 0.7, 0.5))


def batches(x: Tensor, y: Tensor) -> Pairs:
    """So many that fit into the memory."""
    return list(zip(x.split(250), y.split(250), strict=True))


def rows(case: Case) -> Iterator[dict[str, Any]]:
    """Each network, certified and tested."""
    data = list(case.calibration.split(64))
    for part in case.macs:
        yield row(case, f"MACs {part:.0%}", sc.prune(case.model, data, {"macs": f"{part:.0%}"}, points=None))
    as_far = sc.prune(case.model, data, {"drop": DROP}, heldout=case.heldout, delta=DELTA, points=None)
    yield row(case, f"drop {DROP}", as_far)


def row(case: Case, budget: str, res: Any) -> dict[str, Any]:
    """The certificate of one network, and its accuracy on the test set beside the original's."""
    cert = sc.certify(case.model, res.model, case.heldout, delta=DELTA, labels=True, used=res.fingerprints)
    lost, gained = rates(case.model, res.model, case.heldout)
    seen = lost - gained
    return {
        "network": case.name,
        "budget": budget,
        "macs_left": round(res.after.macs / res.before.macs, 4),
        "params_left": round(res.after.params / res.before.params, 4),
        "heldout_points": cert.points,
        "delta": DELTA,
        "drop_certified": cert["drop"].bound,
        "drop_seen": seen,
        "drop_on_test": -difference(case.model, res.model, case.test),
        "drop_apart": -difference(case.model, res.model, case.apart),
        "disagreement_certified": cert["disagreement"].bound,
        "points_for_one_percent": points_for_drop(lost, gained, 0.01, DELTA),
        "points_for_one_more": points_for_drop(lost, gained, seen + 0.01, DELTA),
    }


def difference(model: nn.Module, small: nn.Module, pairs: Pairs) -> float:
    """How much more accurate the small network is."""
    before, after = (sc.evaluate(network, pairs).top1 for network in (model, small))
    assert before is not None and after is not None
    return round(after - before, 6)


@torch.no_grad()
def rates(model: nn.Module, small: nn.Module, pairs: Pairs) -> tuple[float, float]:
    """The shares of answers that were lost and gained."""
    lost = gained = 0
    for x, y in pairs:
        old, new = (network.eval()(x).argmax(1) == y for network in (model, small))
        lost += int((old & ~new).sum())
        gained += int((new & ~old).sum())
    points = sum(len(y) for _, y in pairs)
    return lost / points, gained / points


def table(found: list[dict[str, Any]]) -> Table:
    """One line for each network, drops in percentage points."""
    shown = Table(box=box.SIMPLE_HEAD)
    for heading in ("network", "budget", "n", "certified", "seen", "test", "apart", "n for 1 %", "n for seen + 1 %"):
        shown.add_column(heading, justify="left" if heading in ("network", "budget") else "right")
    for one in found:
        drops = [one[f"drop_{key}"] for key in ("certified", "seen", "on_test", "apart")]
        needed = [f"{n:,}" if (n := one[key]) else "-" for key in ("points_for_one_percent", "points_for_one_more")]
        cells = ["-" if drop is None else f"{100 * drop:.2f}" for drop in drops]
        shown.add_row(one["network"], one["budget"], f"{one['heldout_points']:,}", *cells, *needed)
    return shown


def main() -> None:
    """Prune, certify and test both networks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="has MNIST, cifar-10-batches-py and weights")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    prepare(args.threads)
    found = []
    for case in (lenet, resnet):
        for one in rows(case(args.data)):
            found.append(one)
            print(one["network"], one["budget"], one["drop_certified"], one["drop_on_test"], flush=True)
    what = f"drop in accuracy: certified with confidence {1 - DELTA:g}, seen on held-out points, and on the test set"
    record = {"what": what, "rows": found, "versions": versions("secateur", "torch", "numpy", "scipy")}
    write_whole(RECORD, json.dumps(record, indent=1) + "\n")
    Console(width=110).print(table(found))


if __name__ == "__main__":
    main()
