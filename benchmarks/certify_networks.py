"""What certificates say of real pruned networks, beside what happens on the test set.

python benchmarks/certify_networks.py --data DIR mnist zoo:lenet5 ORIGINAL.safetensors SMALL.safetensors ...
python benchmarks/certify_networks.py --data DIR cifar10 zoo:resnet56 ORIGINAL.safetensors SMALL.safetensors ...

Each SMALL is a network that was saved with its plan, ORIGINAL a state dict. The certificate is from the validation
part of the data set, which neither training nor pruning may have used, nor a choice among networks (check the seed of
the split); the drop on the test set stands beside it. Needed: how many points, at the rates of loss and gain that were
seen, certify a drop of at most one percentage point, and of at most one more than was seen. Rows are added to
results/certify_networks.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

import secateur as sc
from environment import RESULTS, prepare, versions, write_whole
from secateur.bounds import points_for_drop
from secateur.checkpoint import read_info
from secateur.data import Batches, dataset
from secateur.models import build

RECORD = RESULTS / "certify_networks.json"


def batches(name: str, part: str, root: Path, raw: bool, seed: int) -> list[Any]:
    """One part of a data set; `raw` leaves pixels from 0 to 1, as the embedded LeNet-5 wants them."""
    data = dataset(name, part, root=root, seed=seed)
    data = data.scaled((0.0,), (1.0,)) if raw else data
    return list(Batches(data, 250, shuffle=False, augment=False, seed=0))


def row(model: Any, path: Path, heldout: list[Any], test: list[Any], delta: float) -> dict[str, Any]:
    """The certificate of one network, and its test accuracy beside the original's."""
    small = sc.load(path, model)
    info = read_info(path)
    cert = sc.certify(model, small, heldout, delta=delta, labels=True, used=info.get("fingerprints"))
    before, after = (sc.evaluate(network, test).top1 for network in (model, small))
    assert before is not None and after is not None
    drop = cert["drop"]
    lost, gained = _rates(model, small, heldout, cert.points)
    assert drop.observed is not None
    return {
        "file": path.name,
        "params_kept": sum(p.numel() for p in small.parameters()) / sum(p.numel() for p in model.parameters()),
        "points": cert.points,
        "delta": delta,
        "drop_certified": drop.bound,
        "drop_seen": drop.observed,
        "drop_on_test": before - after,
        "disagreement_certified": cert["disagreement"].bound,
        "points_for_one_percent": points_for_drop(lost, gained, 0.01, delta),
        "points_for_one_more": points_for_drop(lost, gained, drop.observed + 0.01, delta),
    }


def _rates(model: Any, small: Any, heldout: list[Any], points: int) -> tuple[float, float]:
    """The shares of answers that were lost and gained."""
    lost = gained = 0
    with torch.no_grad():
        for x, y in heldout:
            old, new = (network.eval()(x).argmax(1) == y for network in (model, small))
            lost += int((old & ~new).sum())
            gained += int((new & ~old).sum())
    return lost / points, gained / points


def main() -> None:
    """Certify each network, add it to the record and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--raw", action="store_true", help="pixels from 0 to 1, as for the embedded LeNet-5")
    parser.add_argument("--delta", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0, help="of the split into training and validation")
    parser.add_argument("dataset")
    parser.add_argument("model", help="zoo:NAME")
    parser.add_argument("original", type=Path)
    parser.add_argument("small", type=Path, nargs="+")
    args = parser.parse_args()
    prepare()
    model = build(args.model, args.original).eval()
    heldout, test = (batches(args.dataset, part, args.data, args.raw, args.seed) for part in ("validation", "test"))
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"rows": []}
    head = {"dataset": args.dataset, "model": args.model}
    new = [head | row(model, path, heldout, test, args.delta) for path in args.small]
    fresh = {(one["model"], one["file"], one["delta"]) for one in new}
    old = [one for one in record["rows"] if (one["model"], one["file"], one["delta"]) not in fresh]
    record = {"versions": versions("secateur", "torch", "numpy", "scipy"), "rows": old + new}
    write_whole(RECORD, json.dumps(record, indent=1) + "\n")
    table = Table(title=f"{args.model} on {args.dataset}, delta {args.delta:g}", box=box.SIMPLE_HEAD)
    for heading in ("network", "kept", "n", "certified", "seen", "test", "n for 1 %", "n for seen + 1 %"):
        table.add_column(heading, justify="left" if heading == "network" else "right")
    for one in new:
        shares = [f"{100 * one[key]:.2f} %" if one[key] is not None else "-" for key in ("drop_certified", "drop_seen")]
        needed = [f"{n:,}" if (n := one[key]) else "-" for key in ("points_for_one_percent", "points_for_one_more")]
        shares.append(f"{100 * one['drop_on_test']:.2f} %")
        table.add_row(one["file"], f"{100 * one['params_kept']:.1f} %", f"{one['points']:,}", *shares, *needed)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
