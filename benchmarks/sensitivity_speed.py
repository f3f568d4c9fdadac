"""How long the sensitivity pass takes beside the plain forward pass over the same points, in the same process.

python benchmarks/sensitivity_speed.py --data DIR     # writes results/sensitivity_speed.json
python benchmarks/sensitivity_speed.py --only resnet20 --eager

DIR holds cifar-10-batches-py, imagenet-val-mini and weights; without it the images are noise and the weights fresh,
and the record says so. The ratio depends on both, since the pass skips what cannot raise a sensitivity.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from environment import RESULTS, peak_mb, prepare, versions, write_whole

BATCH = 16
NETWORKS = {"resnet20": 32, "vgg16-bn": 32, "resnet50": 224, "mobilenet_v2": 224}
POINTS = {32: 256, 224: 64}
LIMIT, MEMORY_MB = 10.0, 1536.0
RECORD = RESULTS / "sensitivity_speed.json"


def network(name: str, data: Path | None) -> tuple[nn.Module, bool]:
    """Make the network; trained where weights are at hand."""
    import torchvision.models
    from safetensors.torch import load_file

    from secateur.zoo.resnet import ResNetCifar
    from secateur.zoo.vgg import VGG16BN

    files = {
        "resnet20": "resnet20-12fca82f.th",
        "resnet56": "resnet56-4bfd9763.th",
        "vgg16-bn": "vgg16-bn-cifar10-9225.safetensors",
        "mobilenet_v2": "mobilenet_v2-b0353104.pth",
    }
    makers = {"resnet20": lambda: ResNetCifar(20), "resnet56": lambda: ResNetCifar(56), "vgg16-bn": VGG16BN}
    model = makers[name]() if name in makers else torchvision.models.get_model(name, weights=None)
    path = data / "weights" / files[name] if data and name in files else None
    if path is None or not path.exists():
        return model.eval(), False
    if path.suffix == ".safetensors":
        state = load_file(path)
    else:
        state = torch.load(path, map_location="cpu", weights_only=name not in ("resnet20", "resnet56"))
    state = {key.removeprefix("module."): value for key, value in state.get("state_dict", state).items()}
    model.load_state_dict(state)
    return model.float().eval(), True


def images(side: int, count: int, data: Path | None, *, scaled: bool = True) -> tuple[Tensor, bool]:
    """Give real images where they are at hand, else noise; from 0 to 1, or scaled as for ImageNet."""
    if data is None:
        return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0)), False
    if side == 32:
        with (data / "cifar-10-batches-py" / "data_batch_1").open("rb") as file:
            raw = torch.tensor(pickle.load(file, encoding="bytes")[b"data"][:count]).view(-1, 3, 32, 32)
    else:
        import numpy as np
        from PIL import Image

        files = sorted((data / "imagenet-val-mini" / "calibration").iterdir())[:count]
        raw = torch.stack([torch.from_numpy(np.array(Image.open(f).convert("RGB"))).permute(2, 0, 1) for f in files])
    if not scaled:
        return raw / 255, True
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (raw / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1), True


def measure(name: str, threads: int, data: Path | None) -> dict[str, Any]:
    """Time both passes in this fresh process, alternating, and give the best of each."""
    prepare(threads)
    import secateur as sc
    from secateur import native
    from secateur.sensitivity import measure as pass_over

    (model, trained), side = network(name, data), NETWORKS[name]
    x, real = images(side, POINTS[side], data, scaled=name != "vgg16-bn")  # its weights want 0 to 1
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
        "points": len(x),
        "batch": BATCH,
        "threads": threads,
        "compiled": compiled,
        "trained": trained,
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--data", type=Path, help="folder with real images and weights")
    parser.add_argument("--only", choices=list(NETWORKS))
    parser.add_argument("--eager", action="store_true", help="the fallback without a compiler; not recorded")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.threads, args.data)))
        return
    command = [sys.executable, __file__, "--threads", str(args.threads)]
    command += ["--data", str(args.data)] if args.data else []
    environment = os.environ | ({"SECATEUR_NO_COMPILER": "1"} if args.eager else {})
    rows = []
    for name in [args.only] if args.only else NETWORKS:
        done = subprocess.run([*command, "--one", name], stdout=subprocess.PIPE, text=True, check=True, env=environment)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    if not args.only and not args.eager:
        record = {
            "what": "time of the sensitivity pass over the time of a plain forward pass over the same points",
            "limits": {"ratio": LIMIT, "extra_mb": MEMORY_MB},
            "machine": platform.machine(),
            "versions": versions("secateur", "torch"),
            "rows": rows,
        }
        write_whole(RECORD, json.dumps(record, indent=1) + "\n")
    table = Table(title="Sensitivity pass beside the forward pass")
    for heading in ("network", "points", "forward s", "sensitivity s", "ratio", "extra MB"):
        table.add_column(heading, justify="left" if heading == "network" else "right")
    for row in rows:
        cells = (row["points"], row["forward_seconds"], row["sensitivity_seconds"], row["ratio"], row["extra_mb"])
        table.add_row(row["network"], *map(str, cells))
    Console().print(table)


if __name__ == "__main__":
    main()
