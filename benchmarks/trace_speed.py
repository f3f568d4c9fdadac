"""Time and memory of trace and cut, beside one forward pass of the same network in the same process.

python benchmarks/trace_speed.py        # ResNet50 and DenseNet121 at 224; writes results/trace_speed.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch

from environment import in_fresh_process, options, peak_mb, prepare, print_table, write_record

NETWORKS = {"resnet50": 10.0, "densenet121": 30.0}  # seconds allowed for trace + cut
MEMORY_MB = 2048.0


def measure(name: str, threads: int) -> dict[str, Any]:
    """Trace and cut one network at 224 in this process, then time its forward pass."""
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
    parser = options(__doc__, threads=torch.get_num_threads())
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.threads)))
        return
    rows = [in_fresh_process(__file__, "--threads", str(args.threads), "--one", name) for name in NETWORKS]
    write_record("trace_speed", {"networks": rows})
    lines = []
    for row in rows:
        seconds = row["trace_seconds"] + row["cut_seconds"]
        within = seconds <= row["limit_seconds"] and row["extra_mb"] <= row["limit_mb"]
        allowed = f"{row['limit_seconds']:.0f} s, {row['limit_mb']:.0f} MB: {'yes' if within else 'NO'}"
        times = [f"{row[key]:.3f} s" for key in ("trace_seconds", "cut_seconds", "forward_seconds")]
        lines.append((row["network"], *times, f"{row['ratio_to_forward']:.0f}x", f"{row['extra_mb']} MB", allowed))
    headings = ("network", "trace", "cut", "one forward pass", "ratio", "memory above the model", "within the limits")
    print_table(headings, lines)


if __name__ == "__main__":
    main()
