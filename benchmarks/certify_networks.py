"""Certify the drop in accuracy of two pruned networks, and compare it with the test set.

    python benchmarks/certify_networks.py --data DIR      # writes results/certify_networks.json; about ten minutes

LeNet-5, as embedded in the package: pruned with digits that it was trained on, certified on 6,000 training digits that
neither training nor pruning has used, and compared with the 10,000 of the test set.
ResNet56, as published: it was trained on all 50,000 training images, so that only test images are new to it. A random
half of them certifies; the record has the drop on all 10,000, to which these belong, and on the other half alone.

Each is pruned to parts of its MACs, and as far as a drop of one percentage point can be certified
(`budget={"drop": "1%"}`). Also recorded: how many samples, at the observed rates of loss and gain, certify a drop of at
most one percentage point, and of at most one more than observed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import secateur as sc
from checkpoints import scale, trained
from environment import add_data_option, options, prepare, print_table, write_record
from secateur.certificates.bounds import samples_for_drop
from secateur.data import Data, dataset
from secateur.embedded import digits, lenet5

DELTA = 1e-3
DROP = "1%"
Pairs = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Case:
    """A network, the samples to prune and to certify with, and the test samples to compare with."""

    name: str
    model: nn.Module
    calibration: Tensor
    heldout: Pairs
    test: Pairs
    apart: Pairs  # test samples that the certificate does not use
    macs: tuple[float, ...]


def lenet(root: Path) -> Case:
    """Return the LeNet-5 of the package with its digits."""
    heldout, test = (
        batches(dataset("mnist", part, root, download=False).scaled((0.0,), (1.0,))) for part in ("validation", "test")
    )
    return Case("LeNet-5", lenet5(), digits("calibration")[0], heldout, test, test, (0.5, 0.3, 0.2, 0.1))


def resnet(root: Path) -> Case:
    """Return the published ResNet56 with its images."""
    name = "zoo:resnet56"
    train, test = (dataset("cifar10", part, root, download=False).scaled(*scale(name)) for part in ("train", "test"))
    chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:1024]
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))
    parts = [batches(test.take(which)) for which in order.chunk(2)]
    model = trained(name, root)
    return Case("ResNet56", model, train.inputs(chosen), parts[0], [*parts[0], *parts[1]], parts[1], (0.9, 0.7, 0.5))


def batches(data: Data) -> Pairs:
    """Return batches that fit into memory."""
    return [(data.inputs(part), data.targets[part]) for part in torch.arange(len(data)).split(250)]


def rows(case: Case) -> Iterator[dict[str, Any]]:
    """Yield a row for each budget: certified and tested."""
    data = list(case.calibration.split(64))
    for part in case.macs:
        yield row(case, f"MACs {part:.0%}", sc.prune(case.model, data, {"macs": f"{part:.0%}"}, samples=None))
    as_far = sc.prune(case.model, data, {"drop": DROP}, heldout=case.heldout, certificate_delta=DELTA, samples=None)
    yield row(case, f"drop {DROP}", as_far)


def row(case: Case, budget: str, res: Any) -> dict[str, Any]:
    """Return the certificate of one pruned network, and its drop on the test set."""
    cert = sc.certify(case.model, res.model, case.heldout, delta=DELTA, labels=True, used=res.fingerprints)
    lost, gained = rates(case.model, res.model, case.heldout)
    seen = lost - gained
    return {
        "network": case.name,
        "budget": budget,
        "macs_left": round(res.after.macs / res.before.macs, 4),
        "params_left": round(res.after.params / res.before.params, 4),
        "heldout_samples": cert.samples,
        "delta": DELTA,
        "drop_certified": cert["drop"].bound,
        "drop_seen": seen,
        "drop_on_test": -difference(case.model, res.model, case.test),
        "drop_apart": -difference(case.model, res.model, case.apart),
        "disagreement_certified": cert["disagreement"].bound,
        "samples_for_one_percent": samples_for_drop(lost, gained, 0.01, DELTA),
        "samples_for_one_more": samples_for_drop(lost, gained, seen + 0.01, DELTA),
    }


def difference(model: nn.Module, small: nn.Module, pairs: Pairs) -> float:
    """Return how much more accurate the small network is than the original."""
    before, after = (sc.evaluate(network, pairs).top1 for network in (model, small))
    assert before is not None and after is not None
    return round(after - before, 6)


@torch.no_grad()
def rates(model: nn.Module, small: nn.Module, pairs: Pairs) -> tuple[float, float]:
    """Return the shares of answers that were lost and gained."""
    lost = gained = 0
    for x, y in pairs:
        old, new = (network.eval()(x).argmax(1) == y for network in (model, small))
        lost += int((old & ~new).sum())
        gained += int((new & ~old).sum())
    samples = sum(len(y) for _, y in pairs)
    return lost / samples, gained / samples


def show(found: list[dict[str, Any]]) -> None:
    """Print one line for each network, drops in percentage points."""
    lines = []
    for one in found:
        drops = [one[f"drop_{key}"] for key in ("certified", "seen", "on_test", "apart")]
        needed = [f"{n:,}" if (n := one[key]) else "-" for key in ("samples_for_one_percent", "samples_for_one_more")]
        cells = ["-" if drop is None else f"{100 * drop:.2f}" for drop in drops]
        lines.append((one["network"], one["budget"], f"{one['heldout_samples']:,}", *cells, *needed))
    headings = ("network", "budget", "n", "certified", "observed", "test", "apart", "n for 1 %", "n for observed + 1 %")
    print_table(headings, lines, words=2, width=110)


def main() -> None:
    """Prune, certify and test both networks."""
    parser = options(__doc__, threads=2)
    add_data_option(parser, "MNIST/raw, cifar-10-batches-py and weights")
    args = parser.parse_args()
    prepare(args.threads)
    found = []
    for case in (lenet, resnet):
        for one in rows(case(args.data)):
            found.append(one)
            print(one["network"], one["budget"], one["drop_certified"], one["drop_on_test"], flush=True)
    what = (
        f"drop in accuracy: certified with confidence {1 - DELTA:g}, observed on held-out samples, and on the test set"
    )
    write_record("certify_networks", {"what": what, "rows": found})
    show(found)


if __name__ == "__main__":
    main()
