"""The paper's figure of accuracy before retraining, for the LeNets: rand, partial and derand, and our default.

    secateur train lenet5 --out runs/lenet5; secateur train lenet300100 --out runs/lenet300100    # three networks each
    python benchmarks/before_retraining.py --data DIR --runs runs     # writes results/before_retraining.json
    python benchmarks/before_retraining.py --table                    # prints it
    python benchmarks/before_retraining.py --figure                   # draws it (pip install matplotlib)

Each network is pruned to parts of its parameters with 256 training images, and evaluated once on the 10,000 test
images. The random methods (rand, partial) run with several seeds: the record has every run, the table the mean.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import torch

from environment import RESULTS, add_data_option, options, prepare, print_table, read_record, write_record
from quality import prune_as

FIGURE = RESULTS.parent / "docs" / "before_retraining.svg"
NETWORKS = {"lenet300100": "LeNet-300-100", "lenet5": "LeNet-5"}
LEFT = (0.7, 0.5, 0.3, 0.2, 0.15, 0.1, 0.05, 0.03)
SEEDS = 3  # of the random methods
METHODS = {"rand": "pfp:rand", "partial": "pfp:partial", "derand": "pfp:derand", "ours": "residual+repair"}
STYLES = {  # colours that differ for the colour-blind as well
    "rand": ("#d55e00", "o-"),
    "partial": ("#cc79a7", "s--"),
    "derand": ("#0072b2", "^-"),
    "ours": ("#009e73", "D-"),
}


def study(recipe_name: str, number: int, runs: Path, data_root: Path) -> list[dict[str, Any]]:
    """Return the rows of one network: the original, and every method at every size."""
    import secateur as sc
    from secateur.data import Batches
    from secateur.errors import SecateurError
    from secateur.experiments import recipe as recipes
    from secateur.experiments.cascade import Parts, calibration, load_original
    from secateur.pruning.job import Job
    from secateur.training.evaluation import evaluate

    recipe = recipes.read(recipe_name)
    model, parts = load_original(recipe, number, runs / recipe_name), Parts.of(recipe, data_root)
    test = Batches(parts.test, 512, shuffle=False, augment=False, seed=0)
    job = Job.of(model, calibration(parts.train, 256, seed=number), {"params": "50%"}, sc.PruneSettings(samples=None))
    evidence = job.evidence()
    base = {"network": recipe_name, "number": number}
    rows = [{**base, "method": "original", "left": 1.0, "top1": evaluate(model, test).top1}]
    for name, label in METHODS.items():
        for left in LEFT:
            for seed in range(SEEDS if name in ("rand", "partial") else 1):
                row = {**base, "method": name, "left": left, "seed": seed}
                try:
                    res = prune_as(job, evidence, label, {"params": f"{100 * left:g}%"}, seed=seed)
                except SecateurError as error:
                    rows.append(row | {"error": str(error)})
                    continue
                params = res.after.params / res.before.params
                rows.append(row | {"params": params, "top1": evaluate(res.model, test).top1})
    return rows


def errors(rows: list[dict[str, Any]], method: str, left: float) -> list[float]:
    """Return the test errors of a method at a size, in percent."""
    return [100 - 100 * row["top1"] for row in rows if (row["method"], row["left"]) == (method, left)]


def of_network(rows: list[dict[str, Any]], network: str) -> list[dict[str, Any]]:
    """Return the rows of a network that have a result."""
    return [row for row in rows if row["network"] == network and "top1" in row]


def show(rows: list[dict[str, Any]]) -> None:
    """Print the mean test error of every method at every size."""
    for network in NETWORKS:
        here = of_network(rows, network)
        if not here:
            continue
        lines = []
        for left in LEFT:
            found = [errors(here, name, left) for name in METHODS]
            lines.append([f"{left:.0%}", *(f"{statistics.mean(one):.2f}" if one else "-" for one in found)])
        base = statistics.mean(errors(here, "original", 1.0))
        title = f"{network}: test error in percent before retraining; original {base:.2f}"
        print_table(("parameters left", *METHODS), lines, title=title)


def draw(rows: list[dict[str, Any]]) -> None:
    """Draw the mean test error of every method against the parameters left, and the range of all runs."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "secateur", "font.family": "sans-serif"})
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(NETWORKS), figsize=(9, 3.8), sharey=True, layout="constrained")
    for panel, (network, title) in zip(panels, NETWORKS.items(), strict=True):
        here = of_network(rows, network)
        base = statistics.mean(errors(here, "original", 1.0))
        for name, (colour, mark) in STYLES.items():
            found = {100 * left: runs for left in LEFT if (runs := errors(here, name, left))}
            mean, low, high = ([of(runs) for runs in found.values()] for of in (statistics.mean, min, max))
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
    parser = options(__doc__)
    add_data_option(parser, "MNIST/raw", required=False)
    parser.add_argument("--runs", type=Path, help="folder with the networks that `secateur train` wrote")
    parser.add_argument("--numbers", default="0,1,2", help="of the networks (default: %(default)s)")
    parser.add_argument("--table", action="store_true", help="only print the record")
    parser.add_argument("--figure", action="store_true", help="only draw the record, to docs/before_retraining.svg")
    args = parser.parse_args()
    if not args.table and not args.figure:
        if args.data is None or args.runs is None:
            parser.error("--data DIR and --runs DIR are needed")
        prepare(1)
        torch.manual_seed(0)
        rows = [
            row
            for name in NETWORKS
            for number in map(int, args.numbers.split(","))
            if (args.runs / name / f"network-{number}" / "original.safetensors").is_file()
            for row in study(name, number, args.runs, args.data)
        ]
        if not rows:
            parser.error(f"{args.runs} has no trained network: run `secateur train` first, see above")
        write_record("before_retraining", {"rows": rows})
    (draw if args.figure else show)(read_record("before_retraining")["rows"])


if __name__ == "__main__":
    main()
