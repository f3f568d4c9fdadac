"""Networks pruned to a latency budget beside networks pruned to a MACs budget: time, accuracy, time of the search.

    python benchmarks/latency.py --data DIR              # on an idle machine; stop and start again at will
    python benchmarks/latency.py --data DIR --network mobilenet_v2
    python benchmarks/latency.py --table                 # prints the record

ResNet50 and MobileNetV2 with trained weights, one image of 224 x 224, one thread. 256 images of `calibration/` are the
calibration set, accuracy is measured on the others; the test images are not used. Each network is measured once for all
budgets (trials, moments), then cut and repaired for each. Rows with `resource: latency` have the seconds of the search:
the table of layer times, measured anew, and the networks that are cut and timed. `load` is the machine's load average;
above 0.5 times are not to be relied on.

The summary answers: how much faster is the latency-budgeted network than a MACs-budgeted one of the same accuracy (the
line between the two nearest), and how near to its budget does it land.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from checkpoints import IMAGENET, KERAS, trained
from environment import Rows, add_data_option, add_keep_option, options, prepare, print_rows, read_record, write_record
from quality import accuracy, pictures

NETWORKS = ("torchvision:resnet50", "torchvision:mobilenet_v2")
SAMPLES, RUNS = 256, 100
BUDGETS = {"latency": (0.8, 0.7, 0.6), "macs": (0.8, 0.7, 0.6, 0.5, 0.4)}
KEY = ("network", "resource", "budget")


def study(name: str, root: Path, cells: list[tuple[str, float]], runs: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each budget of a network, which is traced and measured once."""
    import secateur as sc
    from secateur.pruning.budget import parse
    from secateur.pruning.job import Job
    from secateur.pruning.prune import carry_out

    files = sorted((root / "imagenet-val-mini" / "calibration").iterdir())
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(0)).tolist()
    scaled = KERAS if "resnet50" in name else IMAGENET
    model = trained(name, root)
    x, _ = pictures([files[i] for i in order[:SAMPLES]], scaled)
    others, labels = pictures([files[i] for i in order[SAMPLES:]], scaled)
    dev = list(zip(others.split(50), labels.split(50), strict=True))
    before = accuracy(model, dev)
    job = Job.of(model, list(x.split(32)), {"macs": "100%"}, sc.PruneSettings(samples=None))
    evidence = job.evidence()
    job.draft(evidence)  # measures everything that does not depend on the budget
    for resource, budget in cells:
        wanted = replace(job, budget=parse({resource: f"{budget:.0%}"}))
        start = time.perf_counter()
        draft = wanted.draft(evidence)
        seconds = time.perf_counter() - start
        res = carry_out(wanted, draft)
        found = sc.bench(model, res.model, x[:1], runs=runs)
        yield {
            "network": name,
            "resource": resource,
            "budget": budget,
            "accuracy": accuracy(res.model, dev),
            "original_accuracy": before,
            "evaluated_on": len(labels),
            "time_left": round(1 / found.speedup, 4),
            "interval": [round(1 / found.high, 4), round(1 / found.low, 4)],
            "original_ms": round(found.first.median_ms, 2),
            "macs_left": round(res.after.macs / res.before.macs, 4),
            "search_seconds": round(seconds, 1),
            "load": round(os.getloadavg()[0], 2),
        }


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each latency-budgeted network how much less time it takes than a MACs-budgeted one as accurate."""
    found = []
    for row in rows:
        if row["resource"] != "latency":
            continue
        others = sorted(
            (one["accuracy"], one["time_left"])
            for one in rows
            if one["resource"] == "macs" and one["network"] == row["network"]
        )
        others.append((row["original_accuracy"], 1.0))
        pairs = [(a, b) for a, b in pairwise(others) if a[0] <= row["accuracy"] <= b[0] and a[0] < b[0]]
        equal = None
        if pairs:
            (low, t0), (high, t1) = pairs[0]
            equal = t0 + (t1 - t0) * (row["accuracy"] - low) / (high - low)
        found.append(
            {
                "network": row["network"],
                "budget": row["budget"],
                "time_left": row["time_left"],
                "off_budget": round(row["time_left"] / row["budget"] - 1, 4),
                "macs_budgeted_time_at_this_accuracy": None if equal is None else round(equal, 4),
                "less_time": None if equal is None else round(1 - row["time_left"] / equal, 4),
                "search_seconds": row["search_seconds"],
            }
        )
    return found


def gather(rows: Rows) -> None:
    """Write the record: the last row of every network and budget."""
    last = {tuple(row[part] for part in KEY): row for row in rows.read()}
    found = [last[key] for key in sorted(last)]
    what = "pruned to a latency budget, and to a MACs budget; one image of 224 x 224, one thread"
    busy = ["rows with a load above 0.5 were timed on a busy machine"] if any(r["load"] > 0.5 for r in found) else []
    data = {"what": what, "remarks": busy, "rows": found, "summary": summary(found)}
    write_record("latency", data, commits={row["commit"] for row in found})


def main() -> None:
    """Measure what is missing, and write the record after every network."""
    parser = options(__doc__, threads=1)
    add_data_option(parser, "imagenet-val-mini and weights", required=False)
    parser.add_argument("--network", default="", help="only networks whose name contains this")
    parser.add_argument("--budget", type=float, help="only this budget")
    parser.add_argument("--runs", type=int, default=RUNS, help="of each network (default: %(default)s)")
    parser.add_argument("--table", action="store_true", help="print the record and measure nothing")
    add_keep_option(parser)
    args = parser.parse_args()
    prepare(args.threads)
    if args.table:
        shown = read_record("latency")["summary"]
        return print_rows({key: key for key in shown[0]}, shown)
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()  # the search includes the table
    rows = Rows("latency", {"samples": SAMPLES})
    done = {tuple(row[part] for part in KEY) for row in rows.read(args.keep)}
    for name in NETWORKS:
        wanted = [(kind, budget) for kind, budgets in BUDGETS.items() for budget in budgets]
        cells = [cell for cell in wanted if (name, *cell) not in done and args.budget in (None, cell[1])]
        if args.network in name and cells:
            for row in study(name, args.data, cells, args.runs):
                rows.add(row)
                print(*(f"{key}={value}" for key, value in row.items()), flush=True)
                gather(rows)
    gather(rows)


if __name__ == "__main__":
    main()
