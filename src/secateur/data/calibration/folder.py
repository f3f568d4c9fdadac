"""Calibration data from images: a folder of them, or a table of their paths and labels."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from secateur.data.calibration.request import Calibration, Request
from secateur.data.images import IMAGENET_MEAN, IMAGENET_STD, SUFFIXES, open_image, resize_and_crop
from secateur.errors import SecateurError, UsageError, explained


def from_folder(
    folder: Path, request: Request, *, labelled: bool = False, classes: Sequence[str] | None = None
) -> Calibration:
    """Return images of a folder and the folders in it; colour is normalised as for ImageNet by default.

    Args:
        labelled: the label of an image is the number of its class, the folder in `folder` that it is in.
        classes: the names of the classes in the order of their numbers; by default sorted.
    """
    _check_shape(request.shape)
    files = _image_files(folder)
    if not files:
        raise SecateurError(f"there is no image in {folder}", remedy=f"add files: {', '.join(sorted(SUFFIXES))}")
    if not labelled:
        return _images(files, None, folder, request)
    if loose := next((file for file in files if file.parent == folder), None):
        raise SecateurError(
            f"{loose} has no label: it is in no folder of a class",
            remedy=f"store it as {folder / 'CLASS' / loose.name}",
        )
    names = [file.relative_to(folder).parts[0] for file in files]
    found = _images(files, _numbered(names, classes or sorted(set(names)), folder), folder, request)
    order = "as listed" if classes else "in the order of their names"
    return replace(found, origin=f"{found.origin} (labels: {len(set(names))} folders, numbered {order})")


def has_classes(folder: Path) -> bool:
    """Whether every image is in a folder of its own class, and there are several of them."""
    files = _image_files(folder)
    return all(file.parent != folder for file in files) and len({f.relative_to(folder).parts[0] for f in files}) > 1


def _image_files(folder: Path) -> list[Path]:
    visible = (path for path in folder.rglob("*") if not path.name.startswith("."))
    return sorted(path for path in visible if path.suffix.lower() in SUFFIXES and path.is_file())


def from_table(table: Path, request: Request, classes: Sequence[str] | None = None) -> Calibration:
    """Return the images that a .csv file with the columns path and label lists; paths start at its folder.

    Labels are whole numbers, or names of classes, which are numbered as `classes` says, by default sorted.
    """
    _check_shape(request.shape)
    with (
        explained(f"{table} cannot be read", remedy="write a .csv file in UTF-8 whose first line is path,label"),
        table.open(newline="", encoding="utf-8-sig") as file,
    ):
        rows = [{(key or "").strip(): value for key, value in row.items()} for row in csv.DictReader(file, strict=True)]
    if not rows or not {"path", "label"} <= rows[0].keys():
        raise SecateurError(
            f"{table} has no rows with the columns path and label", remedy="write path,label into its first line"
        )
    if bad := next((number for number, row in enumerate(rows, 1) if not (row["path"] and row["label"])), None):
        raise SecateurError(f"row {bad} of {table} lacks a path or a label", remedy="write a path and a label into it")
    files = [table.parent / row["path"].strip() for row in rows]
    if missing := next((path for path in files if not path.is_file()), None):
        raise SecateurError(f"there is no file {missing}", remedy=f"paths in {table} start at its own folder")
    names = [row["label"].strip() for row in rows]
    if classes is None and all(name.isascii() and name.isdigit() and len(name) < 10 for name in names):
        labels = [int(name) for name in names]
    else:
        labels = _numbered(names, classes or sorted(set(names)), table)
    return _images(files, labels, table, request)


def _check_shape(shape: tuple[int, ...]) -> None:
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise UsageError(
            f"images do not fit an input of shape {shape}", remedy="images need 1 or 3 channels, height and width"
        )


def _numbered(names: Sequence[str], classes: Sequence[str], where: Path) -> list[int]:
    """Return the number of each class."""
    numbers = {name: number for number, name in enumerate(classes)}
    if unknown := next((name for name in names if name not in numbers), None):
        raise UsageError(f"{where} has the class {unknown!r}, which is not among the labels", remedy="list every class")
    return [numbers[name] for name in names]


def _images(files: Sequence[Path], labels: Sequence[int] | None, source: Path, request: Request) -> Calibration:
    """Return some of the images, with their labels if there are any."""
    shape, note = request.shape, request.note
    if request.scale is None and shape[0] == 3:
        request = replace(request, scale=(IMAGENET_MEAN, IMAGENET_STD))
        note = " (scaled by the mean and std of ImageNet)"
    chosen = request.choose(len(files))
    x = torch.stack([_image(files[i], shape) for i in chosen])
    y = None if labels is None else torch.tensor([labels[i] for i in chosen])
    return request.batches(request.normalised(x), y, f"{source}{note}")


def _image(path: Path, shape: tuple[int, ...]) -> Tensor:
    """Return one image as floats from 0 to 1, resized by its short side and cropped at the centre."""
    image = resize_and_crop(open_image(path, "L" if shape[0] == 1 else "RGB"), (shape[2], shape[1]))
    pixels = torch.from_numpy(np.array(image)).float() / 255
    return pixels.unsqueeze(0) if shape[0] == 1 else pixels.permute(2, 0, 1)
