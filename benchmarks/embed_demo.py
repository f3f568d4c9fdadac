"""Put a trained LeNet-5 and some digits into the package, as src/secateur/embedded reads them.

    python benchmarks/embed_demo.py --data DIR --weights DIR/lenet5-seed0.safetensors

The same input gives the same bytes. The calibration digits are sampled from those that the network of seed 0 was
trained on (benchmarks/train_lenets.py): no validation or test image is among them.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch

from environment import RESULTS, add_data_option, options, write_atomic
from secateur.data import dataset

FOLDER = RESULTS.parent / "src" / "secateur" / "embedded"
SEED = 0
COUNTS = {"test": 2000, "train": 512}
NAMES = {"test": "test", "train": "calibration"}


def pack(root: Path) -> bytes:
    """Return digits of each part, sampled at random, as the bytes of an npz file."""
    arrays = {}
    for part, count in COUNTS.items():
        data = dataset("mnist", part, root, seed=SEED, download=False)
        chosen = data.take(torch.randperm(len(data), generator=torch.Generator().manual_seed(SEED))[:count])
        arrays[f"{NAMES[part]}_images"] = chosen.images.squeeze(1).numpy()
        arrays[f"{NAMES[part]}_labels"] = chosen.targets.to(torch.uint8).numpy()
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def main() -> None:
    """Write both files and print their sizes."""
    parser = options(__doc__)
    add_data_option(parser, "MNIST/raw")
    parser.add_argument("--weights", type=Path, required=True, help="the trained LeNet-5 of seed 0")
    args = parser.parse_args()
    contents = {"lenet5.safetensors": args.weights.read_bytes(), "digits.npz": pack(args.data)}
    for name, content in contents.items():
        write_atomic(FOLDER / name, content)
        print(f"{name}: {len(content):,} bytes")


if __name__ == "__main__":
    main()
