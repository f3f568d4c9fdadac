"""Which kind of sensitivity chooses best, and which shares the budget best: max (the paper's), mean, rms or a quantile.

python benchmarks/sensitivity_kinds.py --data DIR                 # writes results/sensitivity_kinds.json
python benchmarks/sensitivity_kinds.py --table

ResNet20 on CIFAR-10, half and 70 % of the MACs, on images of the training set; judged by 2,000 others of it, never by
the test set. (The checkpoint was trained on all of them, so its own accuracy there is near 100 %; only the order of the
rows is meant.) `both` uses the kind for the choice and for the sizes, `choice` with uniform sizes, `sizes` with the
choice by filter norms; `pfp~rms@pfp~max` chooses by one kind and takes the sizes of another. Each as cut, and once more
repaired. What the record has is not run again.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from checkpoints import NETWORKS
from environment import RESULTS, prepare, versions, write_whole
from quality import accuracy

RECORD = RESULTS / "sensitivity_kinds.json"
NETWORK, POINTS, JUDGED = "zoo:resnet20", 512, 2000
KINDS = ("max", "mean", "rms", "q0.9")
WAYS = {"both": "pfp~{}@pfp", "choice": "pfp~{}@uniform", "sizes": "ft~{}@pfp"}
MIXED = ("pfp~mean@pfp~max", "pfp~rms@pfp~max", "pfp~mean@pfp~q0.9", "pfp~rms@pfp~q0.9")
LABELS = (*(way.format(kind) for kind in KINDS for way in WAYS.values()), *MIXED, "ft", "ft@residual", "residual")
BUDGETS = (0.7, 0.5)


def study(root: Path, draw: int, known: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every kind in every way, for one draw of the calibration points, but for what is known."""
    from secateur.budget import parse
    from secateur.data import dataset
    from secateur.entries import Entry
    from secateur.models import build
    from secateur.planning import Job, judges
    from secateur.prune import carry_out

    file, _, scale = NETWORKS[NETWORK]
    model = build(NETWORK, root / "weights" / file)
    train = dataset("cifar10", "train", root, download=False).scaled(*scale)
    judged = dataset("cifar10", "validation", root, download=False).scaled(*scale)
    chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(draw))[:POINTS]
    batches = [(judged.inputs(part), judged.targets[part]) for part in torch.arange(JUDGED).split(250)]
    job = Job.of(model, [train.inputs(part) for part in chosen.split(64)], {"macs": "50%"}, points=None, seed=draw)
    seen = job.evidence()
    rows = []
    for label in LABELS:
        entry, _, sizes = label.partition("@pfp~")
        ways = Entry.parse(entry).judges(seed=draw, delta=1e-16)
        if sizes:
            ways = judges(ways[0], allocation="pfp", sensitivity=sizes, seed=draw, delta=1e-16)
        for budget in BUDGETS:
            for repair in (False, True):
                row = {"draw": draw, "method": label, "budget": budget, "repair": repair}
                if any(row.items() <= one.items() for one in known):
                    continue
                asked = replace(
                    job, method=ways[0], allocation=ways[1], repair=repair, budget=parse({"macs": f"{budget:.0%}"})
                )
                found = carry_out(asked, asked.draft(seen))
                rows.append(row | {"accuracy": accuracy(found.model, batches)})
                print(rows[-1], flush=True)
    return rows


def show(record: dict[str, Any]) -> None:
    """Print the mean accuracy of every row."""
    rows = record["rows"]
    table = Table(title=f"{record['network']}: percent right on {record['judged']} images, mean over draws")
    columns = [(budget, repair) for budget in BUDGETS for repair in (False, True)]
    table.add_column("method")
    for budget, repair in columns:
        table.add_column(f"{budget:.0%}{' repaired' if repair else ''}", justify="right")
    for method in LABELS:
        cells = []
        for budget, repair in columns:
            one = [r["accuracy"] for r in rows if (r["method"], r["budget"], r["repair"]) == (method, budget, repair)]
            cells.append(f"{sum(one) / len(one):.1f}" if one else "-")
        table.add_row(method, *cells)
    Console().print(table)


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--draws", default="0")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if not args.table:
        if args.data is None:
            parser.error("--data DIR is needed")
        prepare(args.threads)
        rows = json.loads(RECORD.read_text())["rows"] if RECORD.is_file() else []
        head = {"network": NETWORK, "points": POINTS, "judged": JUDGED, "versions": versions("secateur", "torch")}
        for draw in map(int, args.draws.split(",")):
            rows += study(args.data, draw, rows)
            write_whole(RECORD, json.dumps({**head, "rows": rows}, indent=1) + "\n")
    show(json.loads(RECORD.read_text()))


if __name__ == "__main__":
    main()
