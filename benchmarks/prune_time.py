"""The time to prune ResNet50 at 224 by the paper's method, beside Torch-Pruning's Taylor importance on the same points.

python benchmarks/prune_time.py --data DIR --points 256     # writes results/prune_time.json

DIR holds imagenet-val-mini; without it the images are noise. Both leave about half of the MACs. The weights are fresh,
so this says nothing of quality. Time and memory only: each runs in a process of its own, one after the other.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from environment import RESULTS, peak_mb, prepare, versions, write_whole
from sensitivity_speed import images

BATCH = 16
RECORD = RESULTS / "prune_time.json"


def measure(tool: str, points: int, threads: int, data: Path | None) -> dict[str, Any]:
    """Prune once in this fresh process; also time a plain forward pass over the points."""
    prepare(threads)
    import torchvision.models

    torch.manual_seed(0)
    model = torchvision.models.resnet50(weights=None).eval()
    x, real = images(224, points, data)
    batches = list(x.split(BATCH))
    with torch.no_grad():
        started = time.perf_counter()
        for part in batches:
            model(part)
        forward = time.perf_counter() - started
    idle = peak_mb()
    started = time.perf_counter()
    small = {"secateur": _secateur, "torch-pruning": _torch_pruning}[tool](model, batches)
    seconds = time.perf_counter() - started
    return {
        "tool": tool,
        "points": points,
        "threads": threads,
        "real_images": real,
        "forward_seconds": round(forward, 1),
        "prune_seconds": round(seconds, 1),
        "ratio_to_forward": round(seconds / forward, 2),
        "extra_mb": round(peak_mb() - idle),
        "params_left": sum(p.numel() for p in small.parameters()),
    }


def _secateur(model: torch.nn.Module, batches: list[torch.Tensor]) -> torch.nn.Module:
    import secateur as sc

    return sc.prune(model, batches, {"macs": "50%"}, points=None).model


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
    """Measure both tools and print how they compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--tool", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.tool:
        print(json.dumps(measure(args.tool, args.points, args.threads, args.data)))
        return
    command = [sys.executable, __file__, "--points", str(args.points), "--threads", str(args.threads)]
    command += ["--data", str(args.data)] if args.data else []
    rows = []
    for tool in ("secateur", "torch-pruning"):
        done = subprocess.run([*command, "--tool", tool], stdout=subprocess.PIPE, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        row = rows[-1]
        times = f"{row['prune_seconds']} s ({row['ratio_to_forward']} forward passes)"
        print(f"{tool}: {times}, {row['extra_mb']} MB over the forward pass")
    ratio = rows[0]["prune_seconds"] / rows[1]["prune_seconds"]
    print(f"secateur / Torch-Pruning: {ratio:.2f}")
    record = {
        "what": "time to prune ResNet50 at 224: PFP (trace, sensitivities, allocation, cut, verification) and Taylor",
        "rows": rows,
        "ratio": round(ratio, 2),
        "versions": versions("secateur", "torch", "torch-pruning"),
    }
    write_whole(RECORD, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
