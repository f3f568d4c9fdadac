"""Data sets by name, for training and testing; what is missing is downloaded and checked.

>>> train = dataset("cifar10", "train")
>>> for x, y in Batches(train, 128, shuffle=True, augment=True, seed=0).epoch(3):
...     step(x, y)
"""

from __future__ import annotations

import difflib
from pathlib import Path

from secateur.data.base import PARTS, Data, data_root
from secateur.data.cifar import read_cifar10
from secateur.data.driving import read_driving
from secateur.data.folder import read_folder
from secateur.data.idx import DIGITS, FASHION, read_idx_set
from secateur.data.loader import Batches
from secateur.errors import UsageError

NAMES = ("mnist", "fashion-mnist", "cifar10", "driving")

__all__ = ["NAMES", "PARTS", "Batches", "Data", "data_root", "dataset"]


def dataset(
    name: str,
    part: str,
    root: str | Path | None = None,
    *,
    seed: int = 0,
    download: bool = True,
    size: int = 224,
) -> Data:
    """Read one part of a data set: "train", "validation", "test" or "train+validation".

    >>> dataset("mnist", "test")
    >>> dataset("imagefolder:photos", "train", size=64)

    name: mnist, fashion-mnist, cifar10, driving, or imagefolder:PATH, a folder as it is named or in the root.
    root: the folder it lies in; if not given, the one in SECATEUR_DATA, else one in the user's cache.
    seed: draws the tenth of the training images that is for validation, where the data set has no part for it.
    download: fetch what is missing, where there is a public address.
    size: height and width of the pictures of an image folder.
    """
    if part not in PARTS:
        raise UsageError(f"{part!r} is no part of a data set", remedy=f"choose from {', '.join(PARTS)}")
    folder = data_root(root)
    if name.startswith("imagefolder:"):
        path = Path(name.removeprefix("imagefolder:"))
        return read_folder(path if path.is_dir() or path.is_absolute() else folder / path, part, seed, size)
    if name == "mnist":
        return read_idx_set(DIGITS, part, folder, seed, download)
    if name == "fashion-mnist":
        return read_idx_set(FASHION, part, folder, seed, download)
    if name == "cifar10":
        return read_cifar10(part, folder, seed, download)
    if name == "driving":
        return read_driving(part, folder)
    close = difflib.get_close_matches(name, NAMES, n=1)
    hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(NAMES)} or imagefolder:PATH"
    raise UsageError(f"there is no data set {name!r}", remedy=hint)
