"""Data sets by name.

For training and testing; missing files are downloaded and checked.

>>> train = dataset("cifar10", "train")
>>> for x, y in Batches(train, 128, shuffle=True, augment=True, seed=0).epoch(3):
...     step(x, y)
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from secateur.data.base import PARTS, Data, data_root
from secateur.data.cifar import read_cifar10
from secateur.data.driving import read_driving
from secateur.data.folder import read_folder
from secateur.data.idx import DIGITS, FASHION, read_idx_set
from secateur.data.loader import Batches
from secateur.errors import UsageError

Reader = Callable[[str, Path, int, bool], Data]  # from part, root, seed and download

DATASETS: dict[str, Reader] = {
    "mnist": partial(read_idx_set, DIGITS),
    "fashion-mnist": partial(read_idx_set, FASHION),
    "cifar10": read_cifar10,
    "driving": lambda part, root, seed, download: read_driving(part, root),
}

__all__ = ["DATASETS", "PARTS", "Batches", "Data", "Reader", "data_root", "dataset"]


def dataset(
    name: str,
    part: str,
    root: str | Path | None = None,
    *,
    seed: int = 0,
    download: bool = True,
    size: int = 224,
) -> Data:
    """Return one part of a data set.

    >>> dataset("mnist", "test")
    >>> dataset("imagefolder:photos", "train", size=64)

    Args:
        name: mnist, fashion-mnist, cifar10, driving, one of your own in DATASETS, or imagefolder:PATH with the path of
            a folder, also relative to the root.
        part: "train", "validation", "test" or "train+validation".
        root: the folder of the data sets; by default SECATEUR_DATA, else one in the user's cache.
        seed: of the random tenth of the training images that is used for validation, where the data set has no
            validation part.
        download: download missing files, where there is a public address.
        size: height and width of the images of an image folder.
    """
    if part not in PARTS:
        raise UsageError(f"{part!r} is not a part of a data set", remedy=f"use one of {', '.join(PARTS)}")
    folder = data_root(root)
    if name.startswith("imagefolder:"):
        path = Path(name.removeprefix("imagefolder:"))
        return read_folder(path if path.is_dir() or path.is_absolute() else folder / path, part, seed, size)
    if name in DATASETS:
        return DATASETS[name](part, folder, seed, download)
    close = difflib.get_close_matches(name, DATASETS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"use one of {', '.join(DATASETS)} or imagefolder:PATH"
    raise UsageError(f"there is no data set {name!r}", remedy=hint)
