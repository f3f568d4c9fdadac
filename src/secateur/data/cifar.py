"""CIFAR-10 from its Python batches, in their folder or in the archive."""

from __future__ import annotations

import pickle
import tarfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from secateur.data.base import Data, split
from secateur.data.fetch import File, fetch
from secateur.errors import explained

FOLDER = "cifar-10-batches-py"
ARCHIVE = File(
    "cifar-10-python.tar.gz",
    "c58f30108f718f92721af3b95e74349a",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
)
BATCHES = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of the training images
ARRAYS = {  # all names that a batch needs, of numpy 1 and numpy 2
    (module, name): value
    for module, name, value in (
        ("numpy", "ndarray", np.ndarray),
        ("numpy", "dtype", np.dtype),
        ("numpy.core.multiarray", "_reconstruct", np.empty(0).__reduce__()[0]),
        ("numpy._core.multiarray", "_reconstruct", np.empty(0).__reduce__()[0]),
    )
}


def read_cifar10(part: str, root: Path, seed: int, download: bool) -> Data:
    """Return one part, normalised by the mean and standard deviation of the training images."""
    names = BATCHES["test" if part == "test" else "train"]
    if not all((root / FOLDER / name).is_file() for name in names):
        fetch([ARCHIVE], root, download)
        batches = _from_archive(root / ARCHIVE.path, names)
    else:
        batches = []
        for name in names:
            with (root / FOLDER / name).open("rb") as file:
                batches.append(read_batch(file, str(root / FOLDER / name)))
    images, labels = (torch.cat(tensors) for tensors in zip(*batches))
    data = Data(images, labels, MEAN, STD, CLASSES, augment="pad-crop-flip")
    return data if part == "test" else data.take(split(len(data), part, seed))


def _from_archive(path: Path, names: list[str]) -> list[tuple[Tensor, Tensor]]:
    """Return batches from the archive without unpacking it."""
    batches = {}
    with _reading(path), tarfile.open(path) as archive:
        for member in archive:
            name = member.name.removeprefix(f"{FOLDER}/")
            if name in names and (file := archive.extractfile(member)):
                batches[name] = read_batch(file, f"{path} ({name})")
        if absent := [name for name in names if name not in batches]:
            raise ValueError(f"there is no {absent[0]} in it")
    return [batches[name] for name in names]


def read_batch(file: IO[bytes], where: str) -> tuple[Tensor, Tensor]:
    """Return images [n, 3, 32, 32] and labels [n] of one batch, a pickle that is kept from running code."""
    with _reading(where):  # a damaged pickle may fail in any way
        content = _ArraysOnly(file, encoding="bytes").load()
        pixels, labels = content[b"data"], torch.tensor(content[b"labels"])
        if pixels.dtype != np.uint8 or pixels.shape != (len(labels), 3 * 32 * 32):
            raise ValueError(f"its data is {pixels.dtype} of shape {pixels.shape}")
        if labels.dtype != torch.int64 or labels.dim() != 1 or not 0 <= labels.min() <= labels.max() < len(CLASSES):
            raise ValueError("its labels are not integers from 0 to 9")
        return torch.from_numpy(pixels.copy()).view(-1, 3, 32, 32), labels


class _ArraysOnly(pickle.Unpickler):
    """Refuse every name except the few that numpy arrays consist of."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ARRAYS:
            raise pickle.UnpicklingError(f"it uses {module}.{name}, which no batch of images needs")
        return ARRAYS[module, name]


def _reading(where: object) -> AbstractContextManager[None]:
    return explained(f"{where} cannot be read as CIFAR-10", remedy="remove it, so that it is downloaded again")
