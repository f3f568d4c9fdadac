"""How long the sensitivity pass takes, relative to a plain forward pass over the same samples in the same process.

    python benchmarks/sensitivity_speed.py --data DIR     # writes results/sensitivity_speed.json
    python benchmarks/sensitivity_speed.py --only resnet20 --eager

DIR has cifar-10-batches-py, imagenet-val-mini and weights; without it the images are noise and the weights random, and
the record says so. The ratio depends on both, since the pass skips inputs that cannot raise a sensitivity.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from checkpoints import FILES, IMAGENET, Scale, scale, trained
from environment import add_data_option, in_fresh_process, options, peak_mb, prepare, print_rows, write_record
from quality import pictures

BATCH = 16
SIDES = {"resnet20": 32, "vgg16-bn": 32, "resnet50": 224, "mobilenet_v2": 224}
SAMPLES = {32: 256, 224: 64}
LIMIT, MEMORY_MB = 10.0, 1536.0


def network(name: str, data: Path | None) -> tuple[nn.Module, bool]:
    """Return a network in evaluation mode, and whether it is trained: only where weights are at hand."""
    from secateur.zoo import NETWORKS
    from secateur.zoo.names import build

    full_name = f"zoo:{name}" if name in NETWORKS else f"torchvision:{name}"
    if data and full_name in FILES and (data / "weights" / FILES[full_name]).exists():
        return trained(full_name, data), True
    return build(full_name).eval(), False


def images(side: int, count: int, data: Path | None, scaled: Scale = IMAGENET) -> tuple[Tensor, bool]:
    """Return images of CIFAR-10 (side 32) or ImageNet, and True; without data noise, and False."""
    from secateur.data import dataset

    if data is None:
        return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0)), False
    if side == 32:
        train = dataset("cifar10", "train+validation", data, download=False).scaled(*scaled)
        return train.inputs(torch.arange(count)), True
    return pictures(sorted((data / "imagenet-val-mini" / "calibration").iterdir())[:count])[0], True


def measure(name: str, threads: int, data: Path | None) -> dict[str, Any]:
    """Time both passes in this process, interleaved, and return the best of each."""
    prepare(threads)
    import secateur as sc
    from secateur.methods.pfp import native
    from secateur.methods.pfp.sensitivity import measure as pass_over

    (model, has_weights), side = network(name, data), SIDES[name]
    x, real = images(side, SAMPLES[side], data, scale(f"zoo:{name}"))
    batches = [((part,), {}) for part in x.split(BATCH)]
    graph = sc.trace(model, x[:1])
    compiled_at = time.perf_counter()
    compiled = not isinstance(native.library("shares"), str)
    compile_seconds = time.perf_counter() - compiled_at

    def forward() -> float:
        started = time.perf_counter()
        with torch.no_grad():
            for (part,), _ in batches:
                model(part)
        return time.perf_counter() - started

    def sensitivity() -> float:
        started = time.perf_counter()
        pass_over(model, graph, batches)
        return time.perf_counter() - started

    forward()
    idle = peak_mb()
    plain, full = [], []
    for _ in range(1 if not compiled else 3):
        plain.append(forward())
        full.append(sensitivity())
    return {
        "network": name,
        "side": side,
        "samples": len(x),
        "batch": BATCH,
        "threads": threads,
        "compiled": compiled,
        "trained": has_weights,
        "real_images": real,
        "forward_seconds": round(min(plain), 3),
        "sensitivity_seconds": round(min(full), 3),
        "ratio": round(min(full) / min(plain), 2),
        "all_ratios": [round(b / a, 2) for a, b in zip(plain, full, strict=True)],
        "compile_seconds": round(compile_seconds, 2),
        "extra_mb": round(peak_mb() - idle),
    }


def main() -> None:
    """Measure each network in a process of its own and print the table."""
    parser = options(__doc__, threads=2)
    add_data_option(parser, "cifar-10-batches-py, imagenet-val-mini and weights", required=False)
    parser.add_argument("--only", choices=list(SIDES), help="one network; not recorded")
    parser.add_argument("--eager", action="store_true", help="the fallback without a compiler; not recorded")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.threads, args.data)))
        return
    words = ["--threads", str(args.threads), *(["--data", str(args.data)] if args.data else [])]
    variables = {"SECATEUR_NO_COMPILER": "1"} if args.eager else {}
    names = [args.only] if args.only else SIDES
    rows = [in_fresh_process(__file__, *words, "--one", name, **variables) for name in names]
    if not args.only and not args.eager:
        record = {
            "what": "time of the sensitivity pass over the time of a plain forward pass over the same samples",
            "limits": {"ratio": LIMIT, "extra_mb": MEMORY_MB},
            "rows": rows,
        }
        write_record("sensitivity_speed", record)
    columns = {"network": "network", "samples": "samples", "forward s": "forward_seconds"}
    columns |= {"sensitivity s": "sensitivity_seconds", "ratio": "ratio", "extra MB": "extra_mb"}
    print_rows(columns, rows, title="Sensitivity pass and forward pass")


if __name__ == "__main__":
    main()
