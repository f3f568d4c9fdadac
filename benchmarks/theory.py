"""The error that theory guarantees in each layer before a cut, beside the one that held-out samples certify after it.

    python benchmarks/theory.py --data DIR     # writes results/theory.json

LeNet-5 on the embedded digits and ResNet20 on CIFAR-10, cut by the paper's method, sampled (`rand`) and without chance
(`derand`). Errors are relative to the sum of all terms, z+ + z-, of a layer that consumes a cut group. The certified
ones hold for 95% of inputs each, with confidence 99.9%; the samples for them are embedded test digits, and the half of
the CIFAR-10 test images that recipes use for validation. `docs/draw_pictures.py theory` draws the picture.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from checkpoints import scale, trained
from environment import add_data_option, options, prepare, print_rows, write_record

SAMPLES, HELDOUT, BETA, DELTA = 256, 300, 0.05, 1e-3
BUDGETS = {"LeNet-5": "40%", "ResNet20": "80%"}  # of the parameters
SELECTS = ("rand", "derand")


def lenet5_case() -> tuple[nn.Module, Tensor, Tensor]:
    """Return the embedded network with calibration samples and held-out ones."""
    from secateur.embedded import digits, lenet5

    return lenet5(), digits("calibration")[0], digits("test")[0][:HELDOUT]


def resnet20_case(root: Path) -> tuple[nn.Module, Tensor, Tensor]:
    """Return the trained network with calibration samples and held-out ones."""
    from secateur.data import dataset
    from secateur.experiments.cascade import halves

    network = "zoo:resnet20"
    train, test = (dataset("cifar10", part, root, download=False).scaled(*scale(network)) for part in ("train", "test"))
    chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:SAMPLES]
    fresh = halves(test)[0]
    return trained(network, root), train.inputs(chosen), fresh.inputs(torch.arange(HELDOUT))


def layers(name: str, model: nn.Module, x: Tensor, fresh: Tensor, select: str) -> list[dict[str, Any]]:
    """Return a row for every layer that consumes a cut group."""
    import secateur as sc

    res = sc.prune(model, x, {"params": BUDGETS[name]}, method="pfp", select=select, samples=SAMPLES)
    found = sc.theory(model, res, fresh, beta=BETA, delta=DELTA)
    certificate = sc.certify(
        model, res.model, fresh, beta=BETA, delta=DELTA, labels=False, plan=res.plan, layers=True,
        used=res.fingerprints,
    )  # fmt: skip
    certified = {one.layer: one.bound for one in certificate.statements if one.kind == "layer"}
    order = {layer: number for number, (layer, _) in enumerate(model.named_modules())}
    head = {"network": name, "select": select}
    rows = [
        head | {
            "layer": one.layer, "group": one.group, "units": one.units, "kept": one.kept,
            "a_priori": one.eps, "certified": certified.get(one.layer),
        }
        for one in sorted(found.layers, key=lambda one: order[one.layer])
    ]  # fmt: skip
    whole = {"layer": "output", "a_priori": _finite(found.propagated), "certified": found.certified}
    return [*rows, head | whole | {"by_theorem": _finite(found.theorem_usual)}]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def main() -> None:
    """Measure both networks and write the record."""
    parser = options(__doc__, threads=1)
    add_data_option(parser, "cifar-10-batches-py and weights")
    args = parser.parse_args()
    prepare(args.threads)
    rows = []
    for name, case in (("LeNet-5", lenet5_case()), ("ResNet20", resnet20_case(args.data))):
        for select in SELECTS:
            found = layers(name, *case, select)
            rows += found
            print_rows({key: key for key in ("layer", "a_priori", "certified")}, found, title=f"{name} {select}")
    settings = {"budgets": BUDGETS, "samples": SAMPLES, "heldout": HELDOUT, "beta": BETA, "delta": DELTA}
    write_record("theory", {"settings": settings, "rows": rows})


if __name__ == "__main__":
    main()
