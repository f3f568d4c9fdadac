"""MNIST in memory: the four idx files as tensors, and a seeded split of the training set."""

from __future__ import annotations

import argparse
import gzip
import math
import os
import struct
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Part = Literal["train", "validation", "test"]
VALIDATION = 6_000


def add_data_option(parser: argparse.ArgumentParser) -> None:
    """Give a script its `--data`: the folder with MNIST/raw in it, as torchvision lays it out."""
    given = os.environ.get("SECATEUR_DATA")
    words = "folder with MNIST/raw/*-ubyte.gz in it (default: SECATEUR_DATA)"
    parser.add_argument("--data", type=Path, default=given, required=not given, help=words)


def load(root: Path, part: Part, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Give the images [n, 28, 28] and labels [n] of one part, as bytes.

    >>> load(Path("data"), "validation")[0].shape
    torch.Size([6000, 28, 28])

    The seed draws the 6,000 images for validation out of the 60,000 for training.
    """
    kind = "t10k" if part == "test" else "train"
    images = read_idx(root / f"MNIST/raw/{kind}-images-idx3-ubyte.gz")
    labels = read_idx(root / f"MNIST/raw/{kind}-labels-idx1-ubyte.gz")
    if part == "test":
        return images, labels
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    chosen = order[:VALIDATION] if part == "validation" else order[VALIDATION:]
    return images[chosen], labels[chosen]


def read_idx(path: Path) -> Tensor:
    """Read a zipped idx file of bytes: two zeros, the type, the number of axes, each size, then the values.

    >>> read_idx(Path("data/MNIST/raw/t10k-labels-idx1-ubyte.gz")).shape
    torch.Size([10000])
    """
    content = gzip.decompress(path.read_bytes())
    zeros, kind, axes = struct.unpack(">HBB", content[:4])
    start = 4 + 4 * axes
    shape = struct.unpack(f">{axes}I", content[4:start])
    if zeros or kind != 8 or len(content) - start != math.prod(shape):
        raise ValueError(f"{path} is no idx file of bytes, or a part of one")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy())
