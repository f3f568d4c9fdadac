"""Time and memory of pruning: our default with repair, the paper's method, and Torch-Pruning.

    python benchmarks/prune_time.py --data DIR              # on an idle machine; stop and start again at will
    python benchmarks/prune_time.py --data DIR --growth     # also how both grow with samples, width and depth
    python benchmarks/prune_time.py --data DIR --next       # only the next run that is missing

ResNet56 and VGG16-BN at 32 x 32 with 1,024 and 4,096 CIFAR-10 images, ResNet50 and MobileNetV2 at 224 x 224 with 256 of
ImageNet, to about half of the MACs; a U-Net at 224 x 224 and, if ultralytics is there, YOLOv8n at 640 x 640, both with
random weights and 16 or 32 images of noise. DIR has cifar-10-batches-py, imagenet-val-mini and weights; without it
images are noise and the weights random. Each run has a process of its own, one after the other. Torch-Pruning cannot
cut shortcuts of option A, so it prunes ResNet56 with those of option B. A row has the time of every stage, and
`others`: the share of the processors that other processes took meanwhile.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from checkpoints import scale
from environment import (
    Rows,
    add_data_option,
    add_keep_option,
    in_fresh_process,
    options,
    peak_mb,
    prepare,
    read_record,
    write_record,
)
from sensitivity_speed import images, network
from trace_speed import build

SAMPLES = {"resnet56": 1024, "vgg16-bn": 4096, "resnet50": 256, "mobilenet_v2": 256, "yolov8n": 32, "unet": 16}
SMALL = ("resnet20", "resnet56", "resnet56-b", "resnet110", "vgg16-bn")  # networks for images of 32 x 32
RUNS = (
    ("resnet56", "secateur"),
    ("resnet56-b", "torch-pruning"),
    ("mobilenet_v2", "secateur"),
    ("mobilenet_v2", "torch-pruning"),
    ("resnet50", "secateur"),
    ("resnet50", "torch-pruning"),
    ("vgg16-bn", "secateur"),
    ("vgg16-bn", "torch-pruning"),
    ("resnet50", "pfp"),
    ("unet", "secateur"),
    ("yolov8n", "secateur"),
)
OTHERS = ("unet", "yolov8n")  # as in trace_speed, with random weights and noise as images
LIMITS = {"resnet56": 20, "vgg16-bn": 120, "mobilenet_v2": 60, "resnet50": 160}  # seconds, for pruning with repair
GROWTH = (
    *(("resnet56", samples) for samples in (128, 256, 512, 1024, 2048, 4096)),
    *((name, 128) for name in ("resnet18", "resnet50", "resnet101")),
    *((name, 512) for name in ("resnet20", "resnet56", "resnet110")),
)


def measure(name: str, tool: str, samples: int, threads: int, data: Path | None) -> dict[str, Any]:
    """Prune once in this fresh process; also time a plain forward pass over the samples."""
    prepare(threads)
    torch.manual_seed(0)
    if name in OTHERS:
        model, example = build(name)
        x, trained, real = torch.randn(samples, *example.shape[1:]), False, False
    else:
        model, trained = network(name, data)
        side, full = (32, f"zoo:{name}") if name in SMALL else (224, f"torchvision:{name}")
        x, real = images(side, samples, data, scale(full))
    batches = list(x.split(64 if name in SMALL else 16))
    with torch.no_grad():
        started = time.perf_counter()
        for part in batches:
            model(part)
        forward = time.perf_counter() - started
    idle, busy = peak_mb(), _busy()
    started, own = time.perf_counter(), time.process_time()
    stages: list[dict[str, Any]] = []
    small = _torch_pruning(model, batches) if tool == "torch-pruning" else _secateur(model, batches, tool, stages)
    seconds, own = time.perf_counter() - started, time.process_time() - own
    return {
        "network": name,
        "tool": tool,
        "samples": samples,
        "threads": threads,
        "real_images": real,
        "trained": trained,
        "forward_seconds": round(forward, 2),
        "prune_seconds": round(seconds, 2),
        "cpu_seconds": round(own, 2),
        "others": round(max(0.0, _busy() - busy - own) / seconds / (os.cpu_count() or 1), 3),
        "ratio_to_forward": round(seconds / forward, 2),
        "extra_mb": round(peak_mb() - idle),
        "peak_mb": round(peak_mb()),
        "params_left": sum(p.numel() for p in small.parameters()),
        "stages": stages,
    }


def _busy() -> float:
    """Return the processor seconds that all processes have taken since the machine started; NaN if it does not say."""
    path = Path("/proc/stat")
    if not path.exists():
        return math.nan
    user, nice, system, _, _, irq, softirq = map(int, path.read_text().split(maxsplit=8)[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _secateur(
    model: torch.nn.Module, batches: list[torch.Tensor], tool: str, stages: list[dict[str, Any]]
) -> torch.nn.Module:
    import secateur as sc

    method: dict[str, Any] = {"method": "pfp", "repair": False} if tool == "pfp" else {}
    res = sc.prune(model, batches, {"macs": "50%"}, samples=None, **method)
    stages += res.profile
    return res.model


def _torch_pruning(model: torch.nn.Module, batches: list[torch.Tensor]) -> torch.nn.Module:
    import torch_pruning

    last = [module for module in model.modules() if isinstance(module, torch.nn.Linear)][-1]
    pruner = torch_pruning.pruner.BasePruner(
        model,
        batches[0][:1],
        importance=torch_pruning.importance.GroupTaylorImportance(),
        pruning_ratio=0.3,
        ignored_layers=[last],
    )
    for part in batches:
        labels = torch.arange(len(part)) % last.out_features
        F.cross_entropy(model(part), labels).backward()
    pruner.step()
    return model


def main() -> None:
    """Measure each and print the times."""
    parser = options(__doc__, threads=2)
    add_data_option(parser, "cifar-10-batches-py, imagenet-val-mini and weights", required=False)
    parser.add_argument("--growth", action="store_true", help="also measure how time and memory grow")
    parser.add_argument("--next", action="store_true", help="measure only the next run that is missing")
    add_keep_option(parser)
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        name, tool, samples = args.run
        print(json.dumps(measure(name, tool, int(samples), args.threads, args.data)))
        return
    words = ["--threads", str(args.threads), *(["--data", str(args.data)] if args.data else [])]
    there = [run for run in RUNS if run[0] != "yolov8n" or importlib.util.find_spec("ultralytics")]
    runs = [(name, tool, SAMPLES[name.removesuffix("-b")]) for name, tool in there]
    growth = [(name, "secateur", samples) for name, samples in GROWTH] if args.growth else []
    rows = Rows("prune_time", {"threads": args.threads, "data": args.data is not None})
    known = {_key(row) for row in rows.read(args.keep)}
    missing = [run for run in dict.fromkeys([*runs, *growth]) if run not in known]
    for name, tool, samples in missing[:1] if args.next else missing:
        row = rows.add(in_fresh_process(__file__, *words, "--run", name, tool, str(samples)))
        times = f"{row['prune_seconds']} s ({row['ratio_to_forward']} forward passes)"
        print(f"{name} {tool} {samples}: {times}, {row['extra_mb']} MB above the forward pass", flush=True)
        print(f"  others {row['others']:.1%}", flush=True)
    gather(rows)


def _key(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["network"], row["tool"], row["samples"]


def gather(rows: Rows) -> None:
    """Write the record: the last row of every run."""
    last = {_key(row): row for row in rows.read()}
    found = [last[run] for name, tool in RUNS if (run := (name, tool, SAMPLES[name.removesuffix("-b")])) in last]
    for row in found:
        if row["tool"] == "secateur":
            row["limit_seconds"] = LIMITS.get(row["network"])
    grown = [last[run] for name, samples in GROWTH if (run := (name, "secateur", samples)) in last]
    record = {
        "what": "time to prune to half of the MACs: secateur with its defaults (curves, cut, repair, verification), "
        "pfp without repair, Torch-Pruning with Taylor importance",
        "rows": found,
        "growth": grown,
        "before": read_record("prune_time").get("before", []),  # rows of version 0.1
    }
    write_record("prune_time", record, commits={row["commit"] for row in (*found, *grown)})


if __name__ == "__main__":
    main()
