"""MNIST and Fashion-MNIST: four idx files each, compressed or not."""

from __future__ import annotations

import gzip
import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from secateur.data.base import Data, split
from secateur.data.fetch import File, fetch
from secateur.errors import SecateurError, explained


@dataclass(frozen=True)
class IdxSet:
    """The folder of a data set, its addresses, classes and normalisation, and the checksums of its files."""

    folder: str
    hosts: tuple[str, ...]
    classes: tuple[str, ...]
    mean: float  # of the training pixels, from 0 to 1
    std: float
    md5: dict[str, str]


DIGITS = IdxSet(
    "MNIST/raw",
    ("https://ossci-datasets.s3.amazonaws.com/mnist/",),
    tuple("0123456789"),
    0.1307,
    0.3081,
    {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
)
FASHION = IdxSet(
    "FashionMNIST/raw",
    ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    0.2860,
    0.3530,
    {
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
)


def read_idx_set(known: IdxSet, part: str, root: Path, seed: int, download: bool) -> Data:
    """Return one part. The LeNet inside the package takes pixels from 0 to 1 instead: `data.scaled((0.0,), (1.0,))`."""
    kind = "t10k" if part == "test" else "train"
    names = [f"{kind}-images-idx3-ubyte.gz", f"{kind}-labels-idx1-ubyte.gz"]
    paths = [_present(root / known.folder, name) for name in names]
    if None in paths:
        files = [File(f"{known.folder}/{n}", known.md5[n], tuple(host + n for host in known.hosts)) for n in names]
        fetch([file for file, path in zip(files, paths) if path is None], root, download)
    images, labels = (read_idx(path or root / known.folder / name) for name, path in zip(names, paths))
    if images.dim() != 3 or labels.shape != images.shape[:1] or not len(labels) or labels.max() > 9:
        raise SecateurError(
            f"{root / known.folder} has images {tuple(images.shape)} and labels {tuple(labels.shape)} for {kind!r}",
            remedy="remove the files of this data set, so that they are downloaded again",
        )
    data = Data(images.unsqueeze(1), labels.long(), (known.mean,), (known.std,), known.classes)
    return data if part == "test" else data.take(split(len(data), part, seed))


def _present(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / name.removesuffix(".gz")) if path.is_file()), None)


def read_idx(path: Path) -> Tensor:
    """Return the content of an idx file of bytes: two zeros, the type, the number of axes, each size, the values."""
    with explained(f"{path} cannot be read", remedy="remove it, so that it is downloaded again"):
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        zeros, kind, axes = struct.unpack(">HBB", content[:4])
        start = 4 + 4 * axes
        shape = struct.unpack(f">{axes}I", content[4:start])
        if zeros or kind != 8:
            raise ValueError("it does not begin like an idx file of bytes")
        if len(content) - start != math.prod(shape):
            raise ValueError(f"it has {len(content) - start} values, its header says {math.prod(shape)}")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy())
