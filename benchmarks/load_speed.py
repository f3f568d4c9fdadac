"""How long it takes to load a cut ResNet50, beside building it and beside reading the same tensors and nothing else.

python benchmarks/load_speed.py     # writes results/load_speed.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file

from environment import RESULTS, prepare, versions, write_whole

NETWORK, LIMIT_SECONDS = "torchvision:resnet50", 1.0
RECORD = RESULTS / "load_speed.json"


def measure(threads: int, runs: int) -> dict[str, Any]:
    """Time each step, in turns, so that all of them meet the same other work on the machine."""
    prepare(threads)
    import secateur as sc
    from secateur.models import build

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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=9)
    args = parser.parse_args()
    found = measure(args.threads, args.runs)
    found["versions"] = {
        "python": platform.python_version(),
        **versions("torch", "torchvision", "safetensors", "secateur"),
    }
    write_whole(RECORD, json.dumps(found, indent=1) + "\n")
    table = Table("step", "median", "least", "to building")
    for name, value in found["seconds"].items():
        ratio = value / found["seconds"]["build"]
        table.add_row(name, f"{value:.3f} s", f"{found['least_seconds'][name]:.3f} s", f"{ratio:.2f}x")
    Console().print(table)
    if found["seconds"]["load"] > LIMIT_SECONDS:
        raise SystemExit(f"loading takes {found['seconds']['load']:.2f} s, {LIMIT_SECONDS:.0f} s are allowed")


if __name__ == "__main__":
    main()
