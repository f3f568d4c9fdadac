"""Time and memory of pruning: our default with repair, the paper's method, and Torch-Pruning.

    python benchmarks/prune_time.py --data DIR     # writes results/prune_time.json; about a quarter of an hour

ResNet56 at 32 x 32 with 1,024 CIFAR-10 images and ResNet50 at 224 x 224 with 256 of ImageNet, to about half of the
MACs. DIR has cifar-10-batches-py, imagenet-val-mini and weights; without it the images are noise. ResNet50 has random
weights, so its accuracy is not measured. Each run has a process of its own, one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from environment import add_data_option, in_fresh_process, options, peak_mb, prepare, write_record
from sensitivity_speed import images, network

SAMPLES = {"resnet56": 1024, "resnet50": 256}
SIDE = {"resnet56": 32, "resnet50": 224}
RUNS = (("resnet56", "secateur"), ("resnet50", "secateur"), ("resnet50", "pfp"), ("resnet50", "torch-pruning"))
LIMITS = {"resnet56": 60, "resnet50": 900}  # seconds, for pruning with repair


def measure(name: str, tool: str, threads: int, data: Path | None) -> dict[str, Any]:
    """Prune once in this fresh process; also time a plain forward pass over the samples."""
    prepare(threads)
    torch.manual_seed(0)
    model, trained = network(name, data)
    x, real = images(SIDE[name], SAMPLES[name], data)
    batches = list(x.split(64 if SIDE[name] == 32 else 16))
    with torch.no_grad():
        started = time.perf_counter()
        for part in batches:
            model(part)
        forward = time.perf_counter() - started
    idle = peak_mb()
    started = time.perf_counter()
    small = _torch_pruning(model, batches) if tool == "torch-pruning" else _secateur(model, batches, tool)
    seconds = time.perf_counter() - started
    return {
        "network": name,
        "tool": tool,
        "samples": SAMPLES[name],
        "threads": threads,
        "real_images": real,
        "trained": trained,
        "forward_seconds": round(forward, 1),
        "prune_seconds": round(seconds, 1),
        "ratio_to_forward": round(seconds / forward, 2),
        "extra_mb": round(peak_mb() - idle),
        "peak_mb": round(peak_mb()),
        "params_left": sum(p.numel() for p in small.parameters()),
    }


def _secateur(model: torch.nn.Module, batches: list[torch.Tensor], tool: str) -> torch.nn.Module:
    import secateur as sc

    method = {"method": "pfp", "repair": False} if tool == "pfp" else {}
    return sc.prune(model, batches, {"macs": "50%"}, samples=None, **method).model


def _torch_pruning(model: torch.nn.Module, batches: list[torch.Tensor]) -> torch.nn.Module:
    import torch_pruning

    pruner = torch_pruning.pruner.BasePruner(
        model,
        batches[0][:1],
        importance=torch_pruning.importance.GroupTaylorImportance(),
        pruning_ratio=0.3,
        ignored_layers=[model.fc],
    )
    for part in batches:
        labels = torch.arange(len(part)) % 1000
        F.cross_entropy(model(part), labels).backward()
    pruner.step()
    return model


def main() -> None:
    """Measure each and print the times."""
    parser = options(__doc__, threads=2)
    add_data_option(parser, "cifar-10-batches-py, imagenet-val-mini and weights", required=False)
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        print(json.dumps(measure(*args.run, args.threads, args.data)))
        return
    words = ["--threads", str(args.threads), *(["--data", str(args.data)] if args.data else [])]
    before, rows = os.getloadavg()[0], []
    for run in RUNS:
        row = in_fresh_process(__file__, *words, "--run", *run)
        if run[1] == "secateur":
            row["limit_seconds"] = LIMITS[run[0]]
        rows.append(row)
        times = f"{row['prune_seconds']} s ({row['ratio_to_forward']} forward passes)"
        print(f"{' '.join(run)}: {times}, {row['extra_mb']} MB above the forward pass", flush=True)
    record = {
        "what": "time to prune to half of the MACs: secateur with its defaults (curves, cut, repair, verification), "
        "pfp without repair, Torch-Pruning with Taylor importance",
        "load_before": before,
        "rows": rows,
    }
    write_record("prune_time", record)


if __name__ == "__main__":
    main()
