"""Calibration data: the source that a user names on the command line becomes batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from secateur.data.calibration.arrays import READERS, from_array_file, from_arrays
from secateur.data.calibration.factory import from_factory
from secateur.data.calibration.folder import from_folder, from_table
from secateur.data.calibration.request import FORMS, Calibration, Request, Scale, scaling
from secateur.embedded import digits
from secateur.errors import UsageError

__all__ = ["Calibration", "read_batches"]


def read_batches(
    source: str,
    *,
    shape: tuple[int, ...],
    samples: int = 256,
    batch: int = 32,
    mean: Scale | None = None,
    std: Scale | None = None,
    seed: int = 0,
    labels: bool | Sequence[str] = False,
    unused: int = 0,
) -> Calibration:
    """Return at most `samples` samples of calibration data in batches.

    >>> read_batches("photos", shape=(3, 224, 224))
    >>> read_batches("cifar.npz", shape=(3, 32, 32), mean=0.5, std=0.25)
    >>> read_batches("my/data.py:make_loader", shape=(3, 64, 64), samples=1000)
    >>> read_batches("embedded:digits", shape=(1, 28, 28))
    >>> read_batches("photos", shape=(3, 224, 224), labels=["cat", "dog"])  # photos/cat/1.png and so on
    >>> read_batches("photos.csv", shape=(3, 224, 224))  # lines of path,label

    Args:
        source: a folder of images, a .csv file with the columns path and label, a file of arrays,
            `path/to/file.py:factory` or `embedded:digits`. A factory takes no arguments and returns batches (x, (x, y)
            or dicts) as the network takes them; its first samples are used.
        shape: of one input, without the batch. Bytes become floats from 0 to 1, and height x width x channels becomes
            channels x height x width. Images are resized by their short side, then cropped at the centre.
        samples: of more samples, as many as this are chosen at random.
        batch: number of samples in a batch.
        mean: subtracted from the inputs, one number or one for each channel. If neither `mean` nor `std` is given,
            colour images are normalised as for ImageNet and arrays are not changed.
        std: the inputs are divided by it, one number or one for each channel.
        seed: of the choice of samples.
        labels: for images in folders of their classes: label them by the folder. The classes are numbered in the order
            of their names, or in the order given, which is that of the network's outputs. A .csv file with names of
            classes takes this order too.
        unused: of the samples left over, up to this many are read as well and set aside.
    """
    if samples < 1 or batch < 1:
        raise UsageError(f"{samples} samples in batches of {batch}", remedy="use at least 1 of each")
    if not shape:
        raise UsageError("the input has no size besides the batch", remedy="pass a shape like (3, 224, 224)")
    request = Request(shape, samples, batch, scaling(mean, std, shape[0]), seed, unused)
    path = Path(source)
    if source.endswith(".py") or source.rpartition(":")[0].endswith(".py"):
        return from_factory(source, request)
    if source == "embedded:digits":
        return from_arrays(*digits("calibration"), source, source, request)
    classes = None if isinstance(labels, bool) else list(labels)
    if source and path.is_dir():
        return from_folder(path, request, labelled=labels is not False, classes=classes)
    if path.suffix.lower() == ".csv" and path.is_file():
        return from_table(path, request, classes)
    if path.suffix.lower() not in READERS:
        raise UsageError(f"{source!r} is not calibration data that can be read", remedy=FORMS)
    if not path.is_file():
        raise UsageError(f"there is no file {path}", remedy=FORMS)
    return from_array_file(path, source, request)
