"""Prune at 224 x 224 under limits of memory (RLIMIT_AS): either it works, or an error comes early and says what helps.

    python benchmarks/little_memory.py --data DIR      # writes results/little_memory.json; about an hour

256 images of ImageNet, to half of the MACs; ResNet-50 has trained weights, the EfficientNet random ones. DIR has
imagenet-val-mini and weights. Each run has a process of its own, with the whole limit; `before_mb` is the address space
that the process uses when pruning begins, with the network and the images.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import time
from pathlib import Path
from typing import Any

import torch

from checkpoints import FILES, trained
from effort import images
from environment import (
    Rows,
    add_data_option,
    add_keep_option,
    in_fresh_process,
    options,
    prepare,
    print_rows,
    write_record,
)

NETWORKS = ("torchvision:resnet50", "timm:tf_efficientnet_lite0")
LIMITS = (4096, 3072, 2048)  # MB; with less, the images alone do not fit
SAMPLES = 256


def used_mb(field: str) -> int:
    """Return the address space of this process in MB: now (`VmSize`) or at most (`VmPeak`)."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) >> 10


def measure(name: str, limit: int, root: Path) -> dict[str, Any]:
    """Prune once in this fresh process under a limit in MB."""
    resource.setrlimit(resource.RLIMIT_AS, (limit << 20, limit << 20))
    import secateur as sc
    from secateur.zoo.names import build

    torch.manual_seed(0)
    model = trained(name, root) if name in FILES else build(name).eval()
    x, unused = images(name, SAMPLES, root)
    data = [*x.split(16), *unused.split(16)]
    row: dict[str, Any] = {"network": name, "limit_mb": limit, "samples": SAMPLES, "before_mb": used_mb("VmSize")}
    started = time.perf_counter()
    try:
        res = sc.prune(model, data, {"macs": "50%"}, samples=SAMPLES)
    except sc.SecateurError as error:
        outcome: dict[str, Any] = {"outcome": "refused", "error": error.cause, "remedy": error.remedy}
    else:
        share = res.agreement.share if res.agreement and name in FILES else None
        done = "pruned" if res.repair is not None else "cut, not repaired"
        outcome = {"outcome": done, "agreement": share, "notes": list(res.notes)}
    row["seconds"] = round(time.perf_counter() - started, 1)
    return {**row, "peak_mb": used_mb("VmPeak"), "load": round(os.getloadavg()[0], 1), **outcome}


def main() -> None:
    """Run what is missing, print the table, and write the record."""
    parser = options(__doc__)
    add_data_option(parser, "imagenet-val-mini and weights")
    add_keep_option(parser)
    parser.add_argument("--network", default="", help="only networks whose name contains this")
    parser.add_argument("--limit", type=int, help="only this limit, in MB")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    prepare()
    if args.run:
        print(json.dumps(measure(args.run[0], int(args.run[1]), args.data)))
        return
    rows = Rows("little_memory")
    done = {(row["network"], row["limit_mb"]) for row in rows.read(args.keep)}
    for name in NETWORKS:
        for limit in LIMITS:
            if args.network in name and args.limit in (None, limit) and (name, limit) not in done:
                words = ("--data", str(args.data), "--run", name, str(limit))
                rows.add(in_fresh_process(__file__, *words, OMP_NUM_THREADS="1"))
    last = {(row["network"], row["limit_mb"]): row for row in rows.read()}
    records = [last[key] for name in NETWORKS for limit in LIMITS if (key := (name, limit)) in last]
    columns = ("network", "limit_mb", "before_mb", "outcome", "seconds", "peak_mb")
    print_rows({key: key for key in columns}, records, title="pruning in little memory")
    what = "pruning to half of the MACs under limits of the address space"
    write_record("little_memory", {"what": what, "rows": records}, commits={row["commit"] for row in records})


if __name__ == "__main__":
    main()
