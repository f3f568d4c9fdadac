"""How long trace and cut take, and how much memory, beside one forward pass of the same network in the same process.

python benchmarks/trace_speed.py        # ResNet50 and DenseNet121 at 224; writes results/trace_speed.json
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from environment import RESULTS, peak_mb, prepare, versions, write_whole

NETWORKS = {"resnet50": 10.0, "densenet121": 30.0}  # seconds allowed for trace + cut
MEMORY_MB = 2048.0
RECORD = RESULTS / "trace_speed.json"


def measure(name: str, threads: int) -> dict[str, Any]:
    """Trace and cut one network at 224 in this fresh process, then time its forward pass."""
    prepare(threads)
    import torchvision.models

    import secateur as sc

    model = torchvision.models.get_model(name, weights=None).eval()
    example = torch.randn(1, 3, 224, 224)
    idle = peak_mb()
    started = time.perf_counter()
    graph = sc.trace(model, example)
    traced = time.perf_counter()
    small = sc.cut(model, sc.random_plan(graph, kept=0.5, seed=0))
    finished = time.perf_counter()
    peak = peak_mb()
    with torch.no_grad():
        small(example), model(example)
        forward = statistics.median(_seconds(model, example) for _ in range(7))
    return {
        "network": name,
        "side": 224,
        "threads": threads,
        "trace_seconds": round(traced - started, 3),
        "cut_seconds": round(finished - traced, 3),
        "forward_seconds": round(forward, 4),
        "ratio_to_forward": round((finished - started) / forward, 1),
        "extra_mb": round(peak - idle),
        "limit_seconds": NETWORKS[name],
        "limit_mb": MEMORY_MB,
    }


def _seconds(model: torch.nn.Module, example: torch.Tensor) -> float:
    started = time.perf_counter()
    model(example)
    return time.perf_counter() - started


def main() -> None:
    """Measure each network in a process of its own and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.threads)))
        return
    command = [sys.executable, __file__, "--threads", str(args.threads), "--one"]
    rows = []
    for name in NETWORKS:
        done = subprocess.run([*command, name], stdout=subprocess.PIPE, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    content = {
        "versions": {"python": platform.python_version(), **versions("torch", "torchvision", "secateur")},
        "networks": rows,
    }
    write_whole(RECORD, json.dumps(content, indent=1) + "\n")
    table = Table("network", "trace", "cut", "one forward pass", "ratio", "memory over the model", "allowed")
    for row in rows:
        within = (
            row["trace_seconds"] + row["cut_seconds"] <= row["limit_seconds"] and row["extra_mb"] <= row["limit_mb"]
        )
        table.add_row(
            row["network"],
            f"{row['trace_seconds']:.2f} s",
            f"{row['cut_seconds']:.2f} s",
            f"{row['forward_seconds']:.3f} s",
            f"{row['ratio_to_forward']:.0f}x",
            f"{row['extra_mb']} MB",
            f"{row['limit_seconds']:.0f} s, {row['limit_mb']:.0f} MB: {'yes' if within else 'NO'}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
