"""Put a trained LeNet-5 and some digits into the package, as src/secateur/embedded reads them.

python benchmarks/embed_demo.py --data DIR --weights DIR/lenet5-seed0.safetensors

The same input gives the same bytes. The digits to calibrate with are drawn from those that the network of seed 0 was
trained on (benchmarks/train_lenets.py): no validation or test image is among them.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
import torch

import mnist
from environment import write_whole

FOLDER = Path(__file__).resolve().parent.parent / "src" / "secateur" / "embedded"
SEED = 0
COUNTS: dict[mnist.Part, int] = {"test": 2000, "train": 512}
NAMES = {"test": "test", "train": "calibration"}


def pack(root: Path) -> bytes:
    """Draw the digits of each part at random and zip them."""
    arrays = {}
    for part, count in COUNTS.items():
        images, labels = mnist.load(root, part, SEED)
        chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(SEED))[:count]
        arrays[f"{NAMES[part]}_images"] = images[chosen].numpy()
        arrays[f"{NAMES[part]}_labels"] = labels[chosen].numpy()
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def main() -> None:
    """Write both files and say how large they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mnist.add_data_option(parser)
    parser.add_argument("--weights", type=Path, required=True, help="LeNet-5 of seed 0, trained")
    args = parser.parse_args()
    contents = {"lenet5.safetensors": args.weights.read_bytes(), "digits.npz": pack(args.data)}
    for name, content in contents.items():
        write_whole(FOLDER / name, content)
        print(f"{name}: {len(content):,} bytes")


if __name__ == "__main__":
    main()
