"""Time and memory of a trace, beside the exports that it needs and the dependency graph of Torch-Pruning.

python benchmarks/trace_speed.py        # needs torchvision; torch-pruning and ultralytics if they are to take part

Each network has a process of its own, which traces a small network first, so that imports are not counted. A trace
needs two exports, of evaluation and of training mode; the limit is twice their time. Processor seconds are recorded
beside wall-clock seconds: other jobs on the machine disturb them less.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from environment import in_fresh_process, options, peak_mb, prepare, print_table, write_record

NETWORKS = ("resnet50", "densenet121", "alexnet", "vgg16", "yolov8n", "unet")
LIMIT, MEMORY_MB = 2.0, 2048.0  # of the exports' time; above the model
REPEATS = 3


class UNet(nn.Module):
    """Four levels of two convolutions down and up, joined by concatenation."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(5)]
        self.down = nn.ModuleList(_block(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:-1]))
        self.merge = nn.ModuleList(_block(2 * w, w) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for block in self.down:
            x = block(nn.functional.max_pool2d(x, 2) if skips else x)
            skips.append(x)
        for up, merge, skip in zip(self.up, self.merge, reversed(skips[:-1]), strict=True):
            x = merge(torch.cat([skip, up(x)], 1))
        return self.head(x)


def _block(inputs: int, outputs: int) -> nn.Sequential:
    layers = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


def build(name: str) -> tuple[nn.Module, Tensor]:
    """Return a network with fresh weights and an input for it."""
    if name == "unet":
        return UNet().eval(), torch.randn(1, 3, 224, 224)
    if name == "yolov8n":
        from ultralytics import YOLO

        return YOLO("yolov8n.yaml", verbose=False).model.float().eval(), torch.randn(1, 3, 640, 640)
    import torchvision.models

    return torchvision.models.get_model(name, weights=None).eval(), torch.randn(1, 3, 224, 224)


def measure(name: str, threads: int) -> dict[str, Any]:
    """Export and trace one network in this process, and build Torch-Pruning's graph of it."""
    prepare(threads)
    import secateur as sc
    from secateur.channels.program import export_modes

    small = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    sc.trace(small, torch.randn(1, 3, 8, 8))
    model, example = build(name)
    with torch.no_grad():
        model(example)
    idle = peak_mb()
    exports = [_timed(lambda: export_modes(model, example)) for _ in range(REPEATS)]
    traces = [_timed(lambda: sc.trace(model, example)) for _ in range(REPEATS)]
    peak = peak_mb()
    with torch.no_grad():
        forwards = [_timed(lambda: model(example)) for _ in range(REPEATS)]
    row: dict[str, Any] = {"network": name, "side": example.shape[-1], "threads": threads}
    for key, times in (("export", exports), ("trace", traces), ("forward", forwards)):
        for kind, column in (("seconds", 0), ("cpu_seconds", 1)):
            row[f"{key}_{kind}"] = round(statistics.median(one[column] for one in times), 4)
    row["ratio"] = round(row["trace_seconds"] / row["export_seconds"], 2)
    row["cpu_ratio"] = round(row["trace_cpu_seconds"] / row["export_cpu_seconds"], 2)
    return row | {"extra_mb": round(peak - idle), "limit": LIMIT, "limit_mb": MEMORY_MB} | _peer(model, example)


def _peer(model: nn.Module, example: Tensor) -> dict[str, Any]:
    """Time Torch-Pruning's dependency graph, and build one group for each layer, as its pruners do."""
    if importlib.util.find_spec("torch_pruning") is None:
        return {"torch_pruning_error": "torch-pruning is not installed"}
    import torch_pruning as tp

    for parameter in model.parameters():
        parameter.requires_grad_(True)  # its graph is that of autograd

    def groups() -> None:
        graph = tp.DependencyGraph().build_dependency(model, example_inputs=example)
        list(graph.get_all_groups(root_module_types=[nn.Conv2d, nn.Linear]))

    try:
        seconds, processor = _timed(groups)
    except Exception as error:
        return {"torch_pruning_error": f"{type(error).__name__}: {error}"[:200]}
    return {"torch_pruning_seconds": round(seconds, 4), "torch_pruning_cpu_seconds": round(processor, 4)}


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    started, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - processor


def main() -> None:
    """Measure each network in a process of its own and print the table."""
    parser = options(__doc__, threads=torch.get_num_threads())
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.threads)))
        return
    names = [n for n in NETWORKS if n != "yolov8n" or importlib.util.find_spec("ultralytics")]
    rows = [in_fresh_process(__file__, "--threads", str(args.threads), "--one", name) for name in names]
    absent = sorted(set(NETWORKS) - set(names))
    note = (
        {"note": f"versions: ultralytics was not installed, so the record is without {', '.join(absent)}"}
        if absent
        else {}
    )
    write_record("trace_speed", {**note, "networks": rows})
    lines = []
    for row in rows:
        within = "yes" if row["ratio"] <= LIMIT and row["extra_mb"] <= MEMORY_MB else "NO"
        times = [f"{row[key]:.2f} s" for key in ("forward_seconds", "export_seconds", "trace_seconds")]
        peer = row.get("torch_pruning_seconds")
        ratios = [f"{row['ratio']:.2f}", f"{row['cpu_ratio']:.2f}", f"{row['extra_mb']} MB", within]
        lines.append((row["network"], *times, *ratios, f"{peer:.2f} s" if peer else row["torch_pruning_error"][:30]))
    headings = ("network", "forward", "exports", "trace", "ratio", "CPU ratio", "memory", "within", "Torch-Pruning")
    print_table(headings, lines)


if __name__ == "__main__":
    main()
