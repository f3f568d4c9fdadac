"""Which kind of sensitivity chooses channels best, and which allocates the budget best: max, mean, rms or a quantile.

    python benchmarks/sensitivity_kinds.py --data DIR                 # writes results/sensitivity_kinds.json
    python benchmarks/sensitivity_kinds.py --table                    # prints it

ResNet20 on CIFAR-10 at 70 % and half of its MACs, with training images as calibration samples; evaluated on 2,000 other
training images, never on the test set. (The checkpoint was trained on all of them, so its own accuracy there is near
100 %; only the order of the rows counts.) A kind is used for the choice of channels and for the sizes, for the choice
with uniform sizes, or for the sizes with a choice by filter norms; `pfp~rms@pfp~max` chooses by one kind and takes the
sizes of another. Each network is evaluated as cut, and once more repaired.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from checkpoints import scale, trained
from environment import (
    Rows,
    add_data_option,
    add_keep_option,
    options,
    prepare,
    print_table,
    read_record,
    write_record,
)
from quality import accuracy, prune_as

NETWORK, SAMPLES, EVALUATED_ON = "zoo:resnet20", 512, 2000
KINDS = ("max", "mean", "rms", "q0.9")
WAYS = ("pfp~{}@pfp", "pfp~{}@uniform", "ft~{}@pfp")  # for both, for the choice, for the sizes
MIXED = ("pfp~mean@pfp~max", "pfp~rms@pfp~max", "pfp~mean@pfp~q0.9", "pfp~rms@pfp~q0.9")
LABELS = (*(way.format(kind) for kind in KINDS for way in WAYS), *MIXED, "ft", "ft@residual", "residual")
BUDGETS = (0.7, 0.5)
Cell = tuple[int, str, float, bool]  # repeat, method, budget, repair


def cell(row: dict[str, Any]) -> Cell:
    """Return what identifies a row."""
    return row["repeat"], row["method"], row["budget"], row["repair"]


def study(root: Path, repeat: int, done: Collection[Cell]) -> Iterator[dict[str, Any]]:
    """Yield the rows of one repeat that are not done: every kind in every way."""
    import secateur as sc
    from secateur.data import dataset
    from secateur.pruning.job import Job

    train, others = (
        dataset("cifar10", part, root, download=False).scaled(*scale(NETWORK)) for part in ("train", "validation")
    )
    chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(repeat))[:SAMPLES]
    batches = [(others.inputs(part), others.targets[part]) for part in torch.arange(EVALUATED_ON).split(250)]
    data = [train.inputs(part) for part in chosen.split(64)]
    settings = sc.PruneSettings(samples=None, seed=repeat, delta=1e-16)
    job = Job.of(trained(NETWORK, root), data, {"macs": "50%"}, settings)
    evidence = job.evidence()
    for label in LABELS:
        method, _, sizes = label.partition("@pfp~")
        for budget in BUDGETS:
            for repair in (False, True):
                if (repeat, label, budget, repair) in done:
                    continue
                macs = {"macs": f"{budget:.0%}"}
                res = prune_as(job, evidence, method, macs, seed=repeat, sizes=sizes, repair=repair)
                found = {"repeat": repeat, "method": label, "budget": budget, "repair": repair}
                yield found | {"accuracy": accuracy(res.model, batches)}


def show(record: dict[str, Any]) -> None:
    """Print the mean accuracy of every method."""
    columns = [(budget, repair) for budget in BUDGETS for repair in (False, True)]
    lines = []
    for method in LABELS:
        found = [
            [row["accuracy"] for row in record["rows"] if cell(row)[1:] == (method, *column)] for column in columns
        ]
        lines.append([method, *(f"{mean(one):.1f}" if one else "-" for one in found)])
    headings = [f"{budget:.0%}{' repaired' if repair else ''}" for budget, repair in columns]
    title = f"{record['network']}: percent correct on {record['evaluated_on']} images, mean over repeats"
    print_table(("method", *headings), lines, title=title)


def main() -> None:
    """Read the command line and run."""
    parser = options(__doc__, threads=2)
    add_data_option(parser, "cifar-10-batches-py and weights", required=False)
    parser.add_argument("--repeats", default="0,1,2", help="seeds of the calibration samples (default: %(default)s)")
    parser.add_argument("--table", action="store_true", help="only print the record")
    add_keep_option(parser)
    args = parser.parse_args()
    if not args.table:
        if args.data is None:
            parser.error("--data DIR is needed")
        prepare(args.threads)
        settings = {"network": NETWORK, "samples": SAMPLES, "evaluated_on": EVALUATED_ON}
        rows = Rows("sensitivity_kinds", settings)
        done = set(map(cell, rows.read(args.keep)))
        for repeat in map(int, args.repeats.split(",")):
            for row in study(args.data, repeat, done):
                print(rows.add(row), flush=True)
        last = {cell(row): row for row in rows.read()}
        write_record(
            "sensitivity_kinds",
            {**settings, "rows": list(last.values())},
            commits={row["commit"] for row in last.values()},
        )
    show(read_record("sensitivity_kinds"))


if __name__ == "__main__":
    main()
