"""Time of `train`, relative to a bare loop of forward, backward and step on the same batches in the same process.

    python benchmarks/train_speed.py                     # writes results/train_speed.json
    python benchmarks/train_speed.py --batches 5         # fewer: prints only

The batches are random tensors of real sizes, in memory. Both loops are interleaved, and the best time of each counts;
the bare loop has its images and weights in the memory layout that `train` chooses.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from environment import options, prepare, print_rows, progress_bar, write_record
from secateur.training.loop import Training, train
from secateur.zoo import NETWORKS

CASES = {"lenet5": 64, "resnet20": 128}  # batch sizes of the paper
BATCHES, REPEATS, LIMIT = 100, 3, 1.15
SGD = {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4}

Pairs = list[tuple[Tensor, Tensor]]


def bare(model: nn.Module, batches: Pairs) -> float:
    """Return the time of a bare training loop."""
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
    """Return the time of an epoch of `train`, with everything before and after it."""
    started = time.perf_counter()
    train(model, batches, Training(epochs=1, **SGD))
    return time.perf_counter() - started


def measure(name: str, count: int, threads: int) -> dict[str, Any]:
    """Time both loops, interleaved, on new networks."""
    torch.manual_seed(0)
    shape = NETWORKS[name]().input_shape
    size = CASES[name]
    batches = [(torch.randn(size, *shape), torch.randint(0, 10, (size,))) for _ in range(count)]
    bare(NETWORKS[name](), batches[:2]), ours(NETWORKS[name](), batches[:2])
    seconds: dict[str, list[float]] = {"bare": [], "train": []}
    for _ in range(REPEATS):
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
    parser = options(__doc__, threads=1)
    parser.add_argument("--batches", type=int, default=BATCHES, help="fewer print only (default: %(default)s)")
    args = parser.parse_args()
    prepare(args.threads)
    with progress_bar() as bar:
        rows = [measure(name, args.batches, args.threads) for name in bar.track(CASES, description="networks")]
    if args.batches >= BATCHES:
        record = {
            "what": "time of train for one epoch over the time of a bare loop on the same batches in memory",
            "limit": LIMIT,
            "rows": rows,
        }
        write_record("train_speed", record)
    columns = {"network": "network", "batch": "batch", "bare s": "bare_seconds", "train s": "train_seconds"}
    print_rows(columns | {"ratio": "ratio", "images/s": "images_per_second"}, rows, title="train and a bare loop")


if __name__ == "__main__":
    main()
