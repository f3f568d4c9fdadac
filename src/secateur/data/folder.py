"""Images in folders: one folder for each part, and in it one for each class."""

from __future__ import annotations

from pathlib import Path

import torch

from secateur.data.base import Data, split
from secateur.data.images import IMAGENET_MEAN, IMAGENET_STD, SUFFIXES, ImageFiles
from secateur.errors import SecateurError, UsageError

FOLDERS = ("train", "calibration", "val", "validation", "test")
LAYOUT = "store the images as train/CLASS/*.jpg, val/CLASS/*.jpg and test/CLASS/*.jpg"
Labelled = list[tuple[Path, str | int]]  # files, each with the name or the number of its class


def read_folder(folder: Path, part: str, seed: int, size: int) -> Data:
    """Return the images of one part, which are read when they are indexed.

    Without a `test` folder, `val` (or `validation`) is the test set. Without a third one, validation is a tenth of
    `train`. Without a `train` folder, `calibration` is the training set. Instead of using folders of classes, file
    names may begin with a class number: `test/17_abc.jpg`.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", remedy=LAYOUT)
    sets = {name: _labelled(folder / name) for name in FOLDERS if (folder / name).is_dir()}
    chosen = _part(sets, part, seed)
    if not chosen:
        raise SecateurError(f"there are no images in {folder} for the part {part!r}", remedy=LAYOUT)
    labels = {label for found in sets.values() for _, label in found}
    names = {label for label in labels if isinstance(label, str)}
    numbers = {label for label in labels if isinstance(label, int)}
    if names and numbers:
        raise SecateurError(f"in {folder} some images are in folders of classes and some are not", remedy=LAYOUT)
    classes = tuple(sorted(names)) or tuple(str(number) for number in range(max(numbers) + 1))
    numbered = {name: number for number, name in enumerate(classes)}
    targets = torch.tensor([numbered[str(label)] for _, label in chosen])
    images = ImageFiles(tuple(file for file, _ in chosen), (size, size))
    return Data(images, targets, IMAGENET_MEAN, IMAGENET_STD, classes, augment="resized-crop-flip")


def _part(sets: dict[str, Labelled], part: str, seed: int) -> Labelled:
    held_out = sets.get("val", sets.get("validation", []))
    if part == "test":
        return sets.get("test", held_out)
    train = sets.get("train", sets.get("calibration", []))
    if held_out and "test" in sets:
        return {"train": train, "validation": held_out, "train+validation": train + held_out}[part]
    return [train[index] for index in split(len(train), part, seed).tolist()]


def _labelled(folder: Path) -> Labelled:
    """Return the images in the folders of the classes, or numbered ones in the folder itself."""
    found: Labelled = []
    for file in sorted(folder.rglob("*")):
        if file.suffix.lower() not in SUFFIXES or file.name.startswith("."):
            continue
        if file.parent != folder:
            found.append((file, file.relative_to(folder).parts[0]))
            continue
        number = file.stem.partition("_")[0]
        if not number.isascii() or not number.isdigit():
            raise SecateurError(f"the class of {file} is given neither by a folder nor by a number", remedy=LAYOUT)
        found.append((file, int(number)))
    return found
