"""How long it takes to load a cut ResNet50, beside building it and beside reading the same tensors and nothing else.

python benchmarks/load_speed.py     # writes results/load_speed.json
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from environment import options, prepare, print_table, write_record

NETWORK, RUNS, LIMIT_SECONDS = "torchvision:resnet50", 9, 1.0


def measure(threads: int, runs: int) -> dict[str, Any]:
    """Time each step, interleaved, so that other work on the machine affects all of them alike."""
    prepare(threads)
    import secateur as sc
    from secateur.zoo.names import build

    model = build(NETWORK)
    small_plan = sc.random_plan(sc.trace(model, torch.zeros(1, 3, 224, 224)), kept=0.7)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.safetensors"
        small = sc.cut(model, small_plan)
        sc.save(path, small, small_plan, architecture=NETWORK)
        steps: dict[str, Callable[[], Any]] = {
            "build": lambda: build(NETWORK),
            "read_tensors": lambda: load_file(path),
            "save": lambda: sc.save(path, small, small_plan, architecture=NETWORK),
            "load": lambda: sc.load(path, model),
            "load_by_name": lambda: sc.load(path),
        }
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(runs + 1):
            for name, step in steps.items():
                times[name].append(_seconds(step))
        size = path.stat().st_size
    median = {name: statistics.median(found[1:]) for name, found in times.items()}  # the first run warms up
    return {
        "network": NETWORK,
        "file_mb": round(size / 1e6, 1),
        "threads": threads,
        "runs": runs,
        "seconds": {name: round(value, 4) for name, value in median.items()},
        "least_seconds": {name: round(min(found[1:]), 4) for name, found in times.items()},
        "load_to_build": round(median["load"] / median["build"], 2),
        "load_to_read_tensors": round(median["load"] / median["read_tensors"], 1),
        "limit_seconds": LIMIT_SECONDS,
        "other_work": f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors",
    }


def _seconds(step: Callable[[], Any]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def main() -> None:
    """Measure, print the table, and fail if loading takes too long."""
    parser = options(__doc__, threads=1)
    parser.add_argument("--runs", type=int, default=RUNS, help="of each step; fewer print only (default: %(default)s)")
    args = parser.parse_args()
    found = measure(args.threads, args.runs)
    if args.runs >= RUNS:
        write_record("load_speed", found)
    seconds, least = found["seconds"], found["least_seconds"]
    rows = [(name, f"{seconds[name]:.3f} s", f"{least[name]:.3f} s") for name in seconds]
    rows = [(*row, f"{seconds[row[0]] / seconds['build']:.2f}x") for row in rows]
    print_table(("step", "median", "least", "to building"), rows)
    if found["seconds"]["load"] > LIMIT_SECONDS:
        raise SystemExit(f"loading takes {found['seconds']['load']:.2f} s, {LIMIT_SECONDS:.0f} s are allowed")


if __name__ == "__main__":
    main()
