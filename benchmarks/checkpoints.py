"""Evaluate the public CIFAR-10 checkpoints on the 10,000 test images, through the package's own loader and data.

python benchmarks/checkpoints.py --data DIR      # has cifar-10-batches-py and weights; writes results/checkpoints.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from environment import RESULTS, prepare, versions, write_whole

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
PLAIN = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
NETWORKS = {  # name, file, published accuracy, scale of the images
    "zoo:resnet20": ("resnet20-12fca82f.th", 91.7, IMAGENET),
    "zoo:resnet56": ("resnet56-4bfd9763.th", 93.4, IMAGENET),
    "zoo:resnet56-b": ("resnet56-b-cifar10-9320.safetensors", 93.2, PLAIN),
    "zoo:vgg16-bn": ("vgg16-bn-cifar10-9225.safetensors", 92.25, PLAIN),
}
RECORD = RESULTS / "checkpoints.json"


def main() -> None:
    """Evaluate each and print how far it is from what was published."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    prepare(args.threads)
    from secateur.data import Batches, dataset
    from secateur.evaluate import evaluate
    from secateur.models import build

    test = dataset("cifar10", "test", args.data, download=False)
    rows = []
    for name, (file, published, scale) in NETWORKS.items():
        model = build(name, args.data / "weights" / file)
        batches = Batches(test.scaled(*scale), 250, shuffle=False, augment=False, seed=0)
        found = evaluate(model, batches)
        accuracy = round(100 * float(found.top1 or 0), 2)
        rows.append({"network": name, "file": file, "points": found.points, "top1": accuracy, "published": published})
    table = Table(title="CIFAR-10 test images, percent right")
    for heading in ("network", "measured", "published"):
        table.add_column(heading)
    for row in rows:
        table.add_row(str(row["network"]), str(row["top1"]), str(row["published"]))
    Console().print(table)
    record = {
        "what": "public checkpoints on the CIFAR-10 test set",
        "rows": rows,
        "versions": versions("secateur", "torch"),
    }
    write_whole(RECORD, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
