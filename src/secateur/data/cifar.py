"""CIFAR-10 from its python batches, in their folder or still in the archive."""

from __future__ import annotations

import pickle
import tarfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from secateur.data.base import Data, split
from secateur.data.fetch import File, fetch
from secateur.errors import SecateurError
from secateur.program import first_line

FOLDER = "cifar-10-batches-py"
ARCHIVE = File(
    "cifar-10-python.tar.gz",
    "c58f30108f718f92721af3b95e74349a",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
)
BATCHES = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of the training images
ARRAYS = {  # all that a batch needs, under the names of both generations of numpy
    (module, name): value
    for module, name, value in (
        ("numpy", "ndarray", np.ndarray),
        ("numpy", "dtype", np.dtype),
        ("numpy.core.multiarray", "_reconstruct", np.empty(0).__reduce__()[0]),
        ("numpy._core.multiarray", "_reconstruct", np.empty(0).__reduce__()[0]),
    )
}


def read_cifar10(part: str, root: Path, seed: int, download: bool) -> Data:
    """Read one part, scaled by the mean and deviation of the training images.

    >>> read_cifar10("test", Path("data"), seed=0, download=False).images.shape
    torch.Size([10000, 3, 32, 32])
    """
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
    """Read batches without unpacking the archive."""
    batches = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = member.name.removeprefix(f"{FOLDER}/")
                if name in names and (file := archive.extractfile(member)):
                    batches[name] = read_batch(file, f"{path} ({name})")
    except (OSError, EOFError, tarfile.TarError) as error:
        raise _unread(str(path), first_line(error)) from error
    if absent := [name for name in names if name not in batches]:
        raise _unread(str(path), f"there is no {absent[0]} in it")
    return [batches[name] for name in names]


def read_batch(file: IO[bytes], where: str) -> tuple[Tensor, Tensor]:
    """Read images [n, 3, 32, 32] and labels [n] from one batch, a pickle; it cannot run code.

    >>> with open("data/cifar-10-batches-py/test_batch", "rb") as file:
    ...     images, labels = read_batch(file, file.name)
    """
    try:
        content = _ArraysOnly(file, encoding="bytes").load()
        pixels, labels = content[b"data"], torch.tensor(content[b"labels"])
        if pixels.dtype != np.uint8 or pixels.shape != (len(labels), 3 * 32 * 32):
            raise ValueError(f"its data is {pixels.dtype} of shape {pixels.shape}")
        if labels.dtype != torch.int64 or labels.dim() != 1 or not 0 <= labels.min() <= labels.max() < len(CLASSES):
            raise ValueError("its labels are not whole numbers from 0 to 9")
        return torch.from_numpy(pixels.copy()).view(-1, 3, 32, 32), labels
    except Exception as error:  # a damaged pickle may fail in any way
        raise _unread(where, first_line(error)) from error


class _ArraysOnly(pickle.Unpickler):
    """Refuses every name but the few that numpy's arrays are made of."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ARRAYS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch of images needs")
        return ARRAYS[module, name]


def _unread(where: str, cause: str) -> SecateurError:
    return SecateurError(
        f"{where} cannot be read as CIFAR-10: {cause}", remedy="remove it, so that it is fetched again"
    )
