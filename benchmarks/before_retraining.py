"""The paper's figure of accuracy before retraining, for the LeNets: rand, partial and derand, and ours beside them.

    secateur train lenet5 --out runs/lenet5; secateur train lenet300100 --out runs/lenet300100    # three networks each
    python benchmarks/before_retraining.py --data DIR --runs runs     # writes results/before_retraining.json
    python benchmarks/before_retraining.py --table                    # prints it
    python benchmarks/before_retraining.py --figure                   # draws it (pip install matplotlib)

Each network is pruned to parts of its parameters on 256 training images, and meets the 10,000 test images once. Draws
(rand, partial) are repeated with several seeds: the record has every one, the table their mean.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from environment import RESULTS, prepare, versions, write_whole

RECORD = RESULTS / "before_retraining.json"
FIGURE = RESULTS.parent / "docs" / "before_retraining.svg"
NETWORKS = {"lenet300100": "LeNet-300-100", "lenet5": "LeNet-5"}
LEFT = (0.7, 0.5, 0.3, 0.2, 0.15, 0.1, 0.05, 0.03)
DRAWS = 3
METHODS = {"rand": "pfp:rand", "partial": "pfp:partial", "derand": "pfp:derand", "ours": "residual+repair"}
STYLES = {  # colours that differ for the colour-blind as well
    "rand": ("#d55e00", "o-"),
    "partial": ("#cc79a7", "s--"),
    "derand": ("#0072b2", "^-"),
    "ours": ("#009e73", "D-"),
}


def study(recipe_name: str, number: int, runs: Path, data_root: Path) -> list[dict[str, Any]]:
    """Prune one network in every way."""
    from secateur import recipe as recipes
    from secateur.budget import parse
    from secateur.data import Batches
    from secateur.entries import Entry
    from secateur.errors import SecateurError
    from secateur.evaluate import evaluate
    from secateur.loop import Parts, calibration, load_original
    from secateur.planning import Job, judges
    from secateur.prune import carry_out

    recipe = recipes.read(recipe_name)
    model, parts = load_original(recipe, number, runs / recipe_name), Parts.of(recipe, data_root)
    test = Batches(parts.test, 512, shuffle=False, augment=False, seed=0)
    points = calibration(parts.train, 256, seed=number)
    job = Job.of(model, points, {"params": "50%"}, points=None)
    seen = job.evidence()
    rows = [
        {
            "network": recipe_name,
            "number": number,
            "method": "original",
            "left": 1.0,
            "top1": evaluate(model, test).top1,
        }
    ]
    for name, label in METHODS.items():
        for left in LEFT:
            for seed in range(DRAWS if name in ("rand", "partial") else 1):
                entry = Entry.parse(label)
                method, shared = judges(entry.method, select=entry.select, seed=seed, delta=1e-12)
                asked = replace(
                    job, method=method, allocation=shared, repair=bool(entry.repair),
                    budget=parse({"params": f"{100 * left:g}%"}),
                )  # fmt: skip
                row = {"network": recipe_name, "number": number, "method": name, "left": left, "seed": seed}
                try:
                    res = carry_out(asked, asked.draft(seen))
                except SecateurError as error:
                    rows.append(row | {"error": str(error)})
                    continue
                rows.append(
                    row | {"params": res.after.params / res.before.params, "top1": evaluate(res.model, test).top1}
                )
    return rows


def show(record: dict[str, Any]) -> None:
    """Print the mean test error of every method at every size."""
    rows = record["rows"]
    for network in NETWORKS:
        here = [row for row in rows if row["network"] == network and "top1" in row]
        if not here:
            continue
        base = statistics.mean(100 - 100 * row["top1"] for row in here if row["method"] == "original")
        table = Table(title=f"{network}: test error in percent before retraining; original {base:.2f}")
        table.add_column("parameters left")
        for name in METHODS:
            table.add_column(name, justify="right")
        for left in LEFT:
            cells = []
            for name in METHODS:
                found = [100 - 100 * r["top1"] for r in here if r["method"] == name and r["left"] == left]
                cells.append(f"{statistics.mean(found):.2f}" if found else "-")
            table.add_row(f"{left:.0%}", *cells)
        Console().print(table)


def draw(record: dict[str, Any]) -> None:
    """Draw the mean test error of every method over the parameters left, and the range of all runs."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "secateur", "font.family": "sans-serif"})
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(NETWORKS), figsize=(9, 3.8), sharey=True, layout="constrained")
    for panel, (network, title) in zip(panels, NETWORKS.items(), strict=True):
        here = [row for row in record["rows"] if row["network"] == network and "top1" in row]
        base = statistics.mean(100 - 100 * row["top1"] for row in here if row["method"] == "original")
        for name, (colour, mark) in STYLES.items():
            runs = [[100 - 100 * r["top1"] for r in here if (r["method"], r["left"]) == (name, part)] for part in LEFT]
            found = {100 * part: errors for part, errors in zip(LEFT, runs, strict=True) if errors}
            mean, low, high = ([of(errors) for errors in found.values()] for of in (statistics.mean, min, max))
            panel.plot(list(found), mean, mark, color=colour, markerfacecolor="none", label=name)
            panel.fill_between(list(found), low, high, color=colour, alpha=0.15, linewidth=0)
        panel.axhline(base, color="grey", linewidth=1, linestyle=":", label="original")
        panel.set(title=title, xscale="log", yscale="log", xlabel="parameters left, %")
        panel.set_xticks([100 * left for left in LEFT], [f"{100 * left:g}" for left in LEFT])
        panel.set_yticks([1, 2, 5, 10, 20, 50, 90], ["1", "2", "5", "10", "20", "50", "90"])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("test error, %")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(FIGURE, metadata={"Date": None})


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--numbers", default="0,1,2")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--figure", action="store_true")
    args = parser.parse_args()
    if not args.table and not args.figure:
        if args.data is None or args.runs is None:
            parser.error("--data and --runs are needed")
        prepare(1)
        torch.manual_seed(0)
        rows = [
            row
            for name in NETWORKS
            for number in map(int, args.numbers.split(","))
            if (args.runs / name / f"network-{number}" / "original.safetensors").is_file()
            for row in study(name, number, args.runs, args.data)
        ]
        lines = ",\n".join(json.dumps(row) for row in rows)
        head = json.dumps(versions("secateur", "torch"))
        write_whole(RECORD, f'{{"versions": {head},\n"rows": [\n{lines}\n]}}\n')
    record = json.loads(RECORD.read_text())
    if args.figure:
        draw(record)
    else:
        show(record)


if __name__ == "__main__":
    main()
