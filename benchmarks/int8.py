"""Pruning and int8: latency, size and certified accuracy of files in single precision, pruned, int8, and both.

    python benchmarks/int8.py --data DIR --runs DIR             # files and certificates; stop and start again at will
    python benchmarks/int8.py --data DIR --runs DIR --time      # times of the files, on an idle machine

DIR has cifar-10-batches-py, imagenet-val-mini and weights. Every row is one network and one ONNX file of it: `fp32`,
`pruned`, `int8` (static, per channel, calibrated on 128 of the samples of pruning) or `pruned+int8`; the files are kept
in the folder of runs. Rows of certificates bound the drop of each file against the original network in torch, on test
images that nothing has used: 2,000 of CIFAR-10, all 1,000 of ImageNet. Rows of latency are for one image on one thread
in onnxruntime, interleaved with `fp32`; `load` is how many other processes were running.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from checkpoints import trained
from environment import Rows, add_data_option, add_keep_option, options, prepare, print_rows, write_record
from few_samples import cifar, imagenet, tests

RUNS = 200
CALIBRATION = 128  # samples that the ranges of int8 activations are taken from
HELDOUT = 2000  # test images, at most
DELTA = 1e-3
VARIANTS = ("fp32", "pruned", "int8", "pruned+int8")
KINDS = ("certificate", "latency")
KEY = ("network", "variant", "kind")


@dataclass(frozen=True)
class Work:
    """One network, the MACs that remain, the samples that it is pruned with, and the multiple of its widths."""

    name: str
    budget: float
    samples: int
    round_to: int

    def path(self, runs: Path, variant: str) -> Path:
        """Return the file of a variant."""
        return runs / f"{self.name.replace(':', '-')}-{variant}.onnx"


WORK = (
    Work("zoo:resnet56", 0.5, 256, 4),
    Work("torchvision:mobilenet_v2", 0.8, 256, 8),
    Work("torchvision:resnet50", 0.58, 256, 8),
)


class Remembered(nn.Module):
    """A network whose outputs are computed once for each batch, since every file is compared with the same ones."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.found: dict[bytes, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the network."""
        key = x.numpy().tobytes()
        if key not in self.found:
            self.found[key] = self.model(x)
        return self.found[key]


def certified(work: Work, root: Path, runs: Path, wanted: set[str]) -> Iterator[dict[str, Any]]:
    """Write the files of a network, and yield a row with the certificate of each."""
    import secateur as sc

    images = (cifar if work.name.startswith("zoo:") else imagenet)(work.name, root, work.samples, seed=0)
    model, batches = trained(work.name, root).eval(), list(images.x.split(32))
    networks: dict[str, nn.Module] = {"fp32": model, "int8": model}
    macs = {name: 1.0 for name in networks}
    if any(name.startswith("pruned") for name in wanted):
        res = sc.prune(model, batches, {"macs": f"{work.budget:.0%}"}, samples=None, round_to=work.round_to)
        networks |= {"pruned": res.model.eval(), "pruned+int8": res.model.eval()}
        macs |= dict.fromkeys(("pruned", "pruned+int8"), res.after.macs / res.before.macs)
    held, original = heldout(work.name, root), Remembered(model)
    for name in (name for name in VARIANTS if name in wanted):
        path, network = work.path(runs, name), networks[name]
        data = list(images.x[:CALIBRATION].split(32))
        file = sc.export(network, path, images.x[:1], data=data, int8=name.endswith("int8"), runs=20)
        cert = sc.certify(original, sc.load_onnx(path), held, delta=DELTA, labels=True)
        yield {
            "network": work.name,
            "variant": name,
            "kind": "certificate",
            "macs_left": round(macs[name], 4),
            "bytes": file.bytes_after,
            "heldout_samples": cert.samples,
            "delta": DELTA,
            "drop_observed": round(cert["drop"].observed or 0.0, 5),
            "drop_certified": cert["drop"].bound,
            "disagreement_certified": cert["disagreement"].bound,
        }


def timed(work: Work, runs: Path, wanted: set[str]) -> Iterator[dict[str, Any]]:
    """Yield a row with the latency of each file that there is."""
    import secateur as sc
    from secateur.costs.timing import interleaved

    example = torch.randn(1, 3, *((32, 32) if work.name.startswith("zoo:") else (224, 224)))
    for name in (name for name in VARIANTS if name in wanted and work.path(runs, name).exists()):
        first, network = (sc.load_onnx(work.path(runs, variant)) for variant in ("fp32", name))
        others = max(0.0, os.getloadavg()[0] - 1)
        times = interleaved(partial(first, example), partial(network, example), runs=RUNS, threads=1)
        yield {
            "network": work.name,
            "variant": name,
            "kind": "latency",
            "median_ms": round(times.second.median_ms, 3),
            "fp32_ms": round(times.first.median_ms, 3),
            "speedup": round(times.speedup, 3),
            "interval": [round(times.low, 3), round(times.high, 3)],
            "load": round(others, 1),
        }


def heldout(name: str, root: Path) -> list[tuple[Tensor, Tensor]]:
    """Return test images with their labels, the same for every file."""
    found, count = [], 0
    for x, y in tests(name, root):
        if count < HELDOUT:
            found.append((x, y))
            count += len(y)
    return found


def main() -> None:
    """Measure the rows that are missing, and write the record."""
    parser = options(__doc__)
    add_data_option(parser, "cifar-10-batches-py, imagenet-val-mini and weights")
    parser.add_argument("--runs", type=Path, required=True, help="folder for the files")
    parser.add_argument("--network", default="", help="only networks whose names contain this")
    parser.add_argument("--time", action="store_true", help="measure latencies, of the files that there are")
    add_keep_option(parser)
    args = parser.parse_args()
    prepare(1)
    args.runs.mkdir(parents=True, exist_ok=True)
    rows = Rows("int8", {"runs": RUNS, "calibration": CALIBRATION, "heldout": HELDOUT, "stages": 2})
    kind = KINDS[args.time]
    done = {tuple(row[part] for part in KEY) for row in rows.read(args.keep)}
    for work in WORK:
        wanted = {name for name in VARIANTS if (work.name, name, kind) not in done}
        if not wanted or args.network not in work.name:
            continue
        start = time.perf_counter()
        with torch.no_grad():
            for row in timed(work, args.runs, wanted) if args.time else certified(work, args.data, args.runs, wanted):
                print(rows.add(row), flush=True)
        print(f"{work.name}: {time.perf_counter() - start:.0f} s", flush=True)
    last = {tuple(row[part] for part in KEY): row for row in rows.read()}
    order = [(work.name, name, kind) for work in WORK for name in VARIANTS for kind in KINDS]
    found = [last[key] for key in order if key in last]
    what = "ONNX files in fp32, pruned, int8 and both: latency in onnxruntime, size, and the certified drop in accuracy"
    write_record("int8", {"what": what, "rows": found}, commits={row["commit"] for row in found})
    for one, columns in zip(KINDS, (("bytes", "drop_certified"), ("median_ms", "speedup", "load")), strict=True):
        names = ("network", "variant", *columns)
        print_rows({name: name for name in names}, [row for row in found if row["kind"] == one])


if __name__ == "__main__":
    main()
