"""Pruning and int8: latency, size and certified accuracy of files in single precision, pruned, int8, and both.

    python benchmarks/int8.py --data DIR                        # all of it; stop and start again at will
    python benchmarks/int8.py --data DIR --network resnet56

DIR has cifar-10-batches-py, imagenet-val-mini and weights. Every row is one network and one ONNX file of it: `fp32`,
`pruned`, `int8` (static, per channel, calibrated on 128 of the samples of pruning) or `pruned+int8`. Times are for one
image on one thread in onnxruntime, interleaved with those of `fp32`; they need an idle machine, and `load` is how many
other processes were running. Each file is certified against the original network in torch, on test images that nothing
has used: 2,000 of CIFAR-10, all 1,000 of ImageNet.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
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
KEY = ("network", "variant")


@dataclass(frozen=True)
class Work:
    """One network, the MACs that remain, and the samples that it is pruned with."""

    name: str
    budget: float
    samples: int


WORK = (
    Work("zoo:resnet56", 0.5, 256),
    Work("torchvision:mobilenet_v2", 0.8, 256),
    Work("torchvision:resnet50", 0.58, 256),
)


def measured(work: Work, root: Path, folder: Path, wanted: set[str]) -> Iterator[dict[str, Any]]:
    """Yield a row for each file of a network."""
    import secateur as sc
    from secateur.costs.timing import interleaved

    images = (cifar if work.name.startswith("zoo:") else imagenet)(work.name, root, work.samples, seed=0)
    model, example = trained(work.name, root).eval(), images.x[:1]
    networks: dict[str, nn.Module] = {"fp32": model, "int8": model}
    macs = {name: 1.0 for name in networks}
    if any(name.startswith("pruned") for name in wanted):
        res = sc.prune(model, list(images.x.split(32)), {"macs": f"{work.budget:.0%}"}, samples=None)
        networks |= {"pruned": res.model.eval(), "pruned+int8": res.model.eval()}
        macs |= dict.fromkeys(("pruned", "pruned+int8"), res.after.macs / res.before.macs)
    held = heldout(work.name, root)
    files = {
        name: sc.export(
            network,
            folder / f"{name}.onnx",
            example,
            data=list(images.x[:CALIBRATION].split(32)),
            int8=name.endswith("int8"),
            runs=20,
        )
        for name, network in networks.items()
        if name in wanted or name == "fp32"
    }
    first = sc.load_onnx(files["fp32"].path)
    for name in (name for name in VARIANTS if name in wanted):
        network = sc.load_onnx(files[name].path)
        others = max(0.0, os.getloadavg()[0] - 1)
        times = interleaved(lambda: first(example), lambda one=network: one(example), runs=RUNS, threads=1)
        cert = sc.certify(model, network, held, delta=DELTA, labels=True)
        yield {
            "network": work.name,
            "variant": name,
            "macs_left": round(macs[name], 4),
            "bytes": files[name].bytes_after,
            "median_ms": round(times.second.median_ms, 3),
            "fp32_ms": round(times.first.median_ms, 3),
            "speedup": round(times.speedup, 3),
            "interval": [round(times.low, 3), round(times.high, 3)],
            "load": round(others, 1),
            "heldout_samples": cert.samples,
            "delta": DELTA,
            "drop_observed": round(cert["drop"].observed or 0.0, 5),
            "drop_certified": cert["drop"].bound,
            "disagreement_certified": cert["disagreement"].bound,
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
    parser.add_argument("--network", help="only networks whose names contain this")
    add_keep_option(parser)
    args = parser.parse_args()
    prepare(1)
    rows = Rows("int8", {"runs": RUNS, "calibration": CALIBRATION, "heldout": HELDOUT})
    done = {tuple(row[part] for part in KEY) for row in rows.read(args.keep)}
    for work in WORK:
        wanted = {name for name in VARIANTS if (work.name, name) not in done}
        if not wanted or (args.network and args.network not in work.name):
            continue
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            for row in measured(work, args.data, Path(folder), wanted):
                print(rows.add(row), flush=True)
        print(f"{work.name}: {time.perf_counter() - start:.0f} s", flush=True)
    last = {tuple(row[part] for part in KEY): row for row in rows.read()}
    order = [(work.name, name) for work in WORK for name in VARIANTS]
    found = [last[key] for key in order if key in last]
    what = "ONNX files in fp32, pruned, int8 and both: latency in onnxruntime, size, and the certified drop in accuracy"
    write_record("int8", {"what": what, "rows": found}, commits={row["commit"] for row in found})
    columns = {key: key for key in ("network", "variant", "bytes", "median_ms", "speedup", "drop_certified", "load")}
    print_rows(columns, found)


if __name__ == "__main__":
    main()
