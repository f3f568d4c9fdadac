"""What more effort costs and brings: quick, default and thorough pruning of four networks.

    python benchmarks/effort.py --data DIR     # writes results/effort.json

DIR has cifar-10-batches-py, imagenet-val-mini and weights. Agreement and output divergence are measured on further
calibration images that pruning has not used, never on test images. Times are those of one process; `load` is
that of the machine at the end of a run.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from checkpoints import scale, trained
from environment import Rows, add_data_option, add_keep_option, options, prepare, print_rows, write_record
from quality import pictures

WORK = {  # samples, and the budget
    "zoo:resnet20": (1024, {"macs": "50%"}),
    "zoo:resnet56": (1024, {"macs": "50%"}),
    "torchvision:mobilenet_v2": (256, {"macs": "80%"}),
    "zoo:vgg16-bn": (4096, {"params": "20%"}),
}
EFFORTS = ("quick", "default", "thorough")
UNUSED = 1000  # further images, at most


def images(name: str, samples: int, root: Path) -> tuple[Tensor, Tensor]:
    """Return calibration images, and further ones to measure agreement on."""
    if name.startswith("zoo:"):
        from secateur.data import dataset

        train = dataset("cifar10", "train", root, download=False).scaled(*scale(name))
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[: samples + UNUSED]
        x = train.inputs(order)
    else:
        files = sorted((root / "imagenet-val-mini" / "calibration").iterdir())
        chosen = torch.randperm(len(files), generator=torch.Generator().manual_seed(0)).tolist()[: samples + UNUSED]
        x, _ = pictures([files[i] for i in chosen], scale(name))
    return x[:samples], x[samples:]


def measure(name: str, effort: str, root: Path) -> dict[str, Any]:
    """Prune one network once, and measure how often it agrees with the original."""
    import secateur as sc
    from secateur.pruning.agreement import measure as agreement

    samples, budget = WORK[name]
    model = trained(name, root)
    x, unused = images(name, samples, root)
    size = 64 if name.startswith("zoo:") else 16
    batches = list(x.split(size))
    with torch.no_grad():
        started = time.perf_counter()
        for part in batches:
            model(part)
        forward = time.perf_counter() - started
    started = time.perf_counter()
    res = sc.prune(model, batches, budget, samples=None, effort=effort)  # type: ignore[arg-type]
    seconds = time.perf_counter() - started
    found = agreement(model, res.model, [(((part,), {}), None) for part in unused.split(size)])
    return {
        "network": name,
        "effort": effort,
        "samples": samples,
        "budget": budget,
        "forward_seconds": round(forward, 1),
        "seconds": round(seconds, 1),
        "passes": round(seconds / forward, 1),
        "unused": found.samples,
        "agreement": round(100 * (found.share or 0.0), 2),
        "divergence": found.divergence,
        "load": round(os.getloadavg()[0], 1),
        "stages": list(res.profile),
    }


def main() -> None:
    """Measure what is missing, print the table, and write the record."""
    parser = options(__doc__, threads=2)
    add_data_option(parser, "cifar-10-batches-py, imagenet-val-mini and weights")
    add_keep_option(parser)
    parser.add_argument("--network", default="", help="only networks whose name contains this")
    args = parser.parse_args()
    prepare(args.threads)
    rows = Rows("effort")
    done = {(row["network"], row["effort"]) for row in rows.read(args.keep)}
    for name in WORK:
        for effort in EFFORTS:
            if args.network in name and (name, effort) not in done:
                rows.add({**measure(name, effort, args.data), "threads": args.threads})
    last = {(row["network"], row["effort"]): row for row in rows.read()}
    records = [last[key] for name in WORK for effort in EFFORTS if (key := (name, effort)) in last]
    columns = {key: key for key in ("network", "effort", "seconds", "passes", "agreement", "divergence")}
    print_rows(columns, json.loads(json.dumps(records)), title="effort")
    what = "time of pruning by effort, and agreement with the original on unused calibration images"
    write_record("effort", {"what": what, "rows": records}, commits={row["commit"] for row in records})


if __name__ == "__main__":
    main()
