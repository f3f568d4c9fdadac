"""Pictures in folders: one for each part, and in it one for each class."""

from __future__ import annotations

from pathlib import Path

import torch

from secateur.data.base import Data, split
from secateur.data.pictures import SUFFIXES, Pictures
from secateur.errors import SecateurError, UsageError

FOLDERS = ("train", "val", "validation", "test")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
LAYOUT = "lay the pictures out as train/CLASS/*.jpg, val/CLASS/*.jpg and test/CLASS/*.jpg"
Labelled = list[tuple[Path, str | int]]  # files, each with the name or the number of its class


def read_folder(folder: Path, part: str, seed: int, size: int) -> Data:
    """Find the pictures of one part; they are read when they are asked for.

    >>> read_folder(Path("photos"), "train", seed=0, size=224).classes
    ('cat', 'dog')

    Without a `test` folder, `val` (or `validation`) is the test set. Without a third one, validation is a tenth of
    `train`. Instead of lying in folders, files may be named after the number of their class: `test/17_abc.jpg`.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", remedy=LAYOUT)
    sets = {name: _labelled(folder / name) for name in FOLDERS if (folder / name).is_dir()}
    chosen = _part(sets, part, seed)
    if not chosen:
        raise SecateurError(f"there are no pictures in {folder} for the part {part!r}", remedy=LAYOUT)
    labels = {label for found in sets.values() for _, label in found}
    names = {label for label in labels if isinstance(label, str)}
    numbers = {label for label in labels if isinstance(label, int)}
    if names and numbers:
        raise SecateurError(f"in {folder} some pictures lie in folders of classes and some beside", remedy=LAYOUT)
    classes = tuple(sorted(names)) or tuple(str(number) for number in range(max(numbers) + 1))
    places = {name: place for place, name in enumerate(classes)}
    targets = torch.tensor([places[str(label)] for _, label in chosen])
    return Data(Pictures(tuple(file for file, _ in chosen), (size, size)), targets, MEAN, STD, classes)


def _part(sets: dict[str, Labelled], part: str, seed: int) -> Labelled:
    held_out = sets.get("val", sets.get("validation", []))
    if part == "test":
        return sets.get("test", held_out)
    train = sets.get("train", [])
    if held_out and "test" in sets:
        return {"train": train, "validation": held_out, "train+validation": train + held_out}[part]
    return [train[place] for place in split(len(train), part, seed).tolist()]


def _labelled(folder: Path) -> Labelled:
    """The pictures in the folders of the classes, or else beside them and numbered."""
    found: Labelled = []
    for file in sorted(folder.rglob("*")):
        if file.suffix.lower() not in SUFFIXES or file.name.startswith("."):
            continue
        if file.parent != folder:
            found.append((file, file.relative_to(folder).parts[0]))
            continue
        number = file.stem.partition("_")[0]
        if not number.isascii() or not number.isdigit():
            raise SecateurError(f"{file} says by no folder and no number of what class it is", remedy=LAYOUT)
        found.append((file, int(number)))
    return found
