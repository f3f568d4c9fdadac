"""What `train` costs over a bare loop of forward, backward and step on the same batches, in the same process.

python benchmarks/train_speed.py                     # writes results/train_speed.json
python benchmarks/train_speed.py --batches 5         # a trial, not recorded

The batches are random tensors of real sizes, in memory. Both loops take turns, and the best of each counts; the bare
one has its images and weights in the order in memory that `train` chooses.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from environment import RESULTS, prepare, progress_bar, versions, write_whole
from secateur.train import Training, train
from secateur.zoo import NETWORKS

CASES = {"lenet5": 64, "resnet20": 128}  # batch sizes of the paper
BATCHES, TURNS, LIMIT = 100, 3, 1.15
SGD = {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4}
RECORD = RESULTS / "train_speed.json"

Pairs = list[tuple[Tensor, Tensor]]


def bare(model: nn.Module, batches: Pairs) -> float:
    """Time the plainest loop there is."""
    model.to(memory_format=torch.channels_last).train()
    batches = [(x.contiguous(memory_format=torch.channels_last), y) for x, y in batches]
    optimizer = torch.optim.SGD(model.parameters(), **SGD)
    started = time.perf_counter()
    for x, y in batches:
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return time.perf_counter() - started


def ours(model: nn.Module, batches: Pairs) -> float:
    """Time an epoch of `train`, with all it does before and after."""
    started = time.perf_counter()
    train(model, batches, Training(epochs=1, **SGD))
    return time.perf_counter() - started


def measure(name: str, count: int, threads: int) -> dict[str, Any]:
    """Let both loops take turns on fresh networks."""
    torch.manual_seed(0)
    shape = NETWORKS[name]().input_shape
    size = CASES[name]
    batches = [(torch.randn(size, *shape), torch.randint(0, 10, (size,))) for _ in range(count)]
    bare(NETWORKS[name](), batches[:2]), ours(NETWORKS[name](), batches[:2])
    seconds: dict[str, list[float]] = {"bare": [], "train": []}
    for _ in range(TURNS):
        seconds["bare"].append(bare(NETWORKS[name](), batches))
        seconds["train"].append(ours(NETWORKS[name](), batches))
    best = {which: min(times) for which, times in seconds.items()}
    return {
        "network": name,
        "batch": size,
        "batches": count,
        "threads": threads,
        "bare_seconds": round(best["bare"], 3),
        "train_seconds": round(best["train"], 3),
        "ratio": round(best["train"] / best["bare"], 3),
        "all_ratios": [round(b / a, 3) for a, b in zip(seconds["bare"], seconds["train"], strict=True)],
        "images_per_second": round(size * count / best["train"]),
    }


def main() -> None:
    """Measure each network and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=BATCHES)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    prepare(args.threads)
    with progress_bar() as bar:
        rows = [measure(name, args.batches, args.threads) for name in bar.track(CASES, description="networks")]
    if args.batches >= BATCHES:
        record = {
            "what": "time of train for one epoch over the time of a bare loop on the same batches in memory",
            "limit": LIMIT,
            "machine": platform.machine(),
            "versions": versions("secateur", "torch"),
            "rows": rows,
        }
        write_whole(RECORD, json.dumps(record, indent=1) + "\n")
    table = Table(title="train beside a bare loop")
    for heading in ("network", "images", "bare s", "train s", "ratio", "images/s"):
        table.add_column(heading, justify="left" if heading == "network" else "right")
    for row in rows:
        cells = (row["batch"] * row["batches"], row["bare_seconds"], row["train_seconds"], row["ratio"])
        table.add_row(row["network"], *map(str, cells), str(row["images_per_second"]))
    Console().print(table)


if __name__ == "__main__":
    main()
