"""Camera frames of one drive, with the steering angle of each."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import torch

from secateur.data.base import Data
from secateur.data.images import ImageFiles
from secateur.errors import SecateurError, explained

HEIGHT, WIDTH = 120, 160
COLUMNS = ("index", "image", "angle")


def read_driving(part: str, root: Path) -> Data:
    """Return one part of the drive: the first 80 % for training, then 10 % for validation, the last 10 % for testing.

    Neighbouring frames are almost equal, so they are split by time, not at random. Each row of `driving/frames.csv` has
    the number of a frame, its file in `driving/images` and its angle from -1 to 1. Pixels are scaled to -1..1.
    """
    table = root / "driving" / "frames.csv"
    if not table.is_file():
        raise SecateurError(
            f"there is no {table}",
            remedy=f"put a drive there: frames.csv with {', '.join(COLUMNS)}, and the frames in images/; or set "
            "SECATEUR_DATA to another folder",
        )
    rows = _rows(table)
    first, last = len(rows) * 8 // 10, len(rows) * 9 // 10
    bounds = {"train": (0, first), "validation": (first, last), "test": (last, None), "train+validation": (0, last)}
    begin, end = bounds[part]
    _, names, angles = zip(*rows[begin:end])
    files = tuple(table.parent / "images" / name for name in names)
    if absent := next((file for file in files if not file.is_file()), None):
        raise SecateurError(f"{table} names {absent.name}, which is not in images/", remedy="put it there")
    images = ImageFiles(files, (HEIGHT, WIDTH))[:]
    return Data(images, torch.tensor(angles), (0.5,) * 3, (0.5,) * 3, task="regression")


def _rows(table: Path) -> list[tuple[int, str, float]]:
    """Return number, file and angle of each frame, ordered by time."""
    rows = []
    with (
        explained(f"{table} cannot be read", remedy=f"write it as csv with {', '.join(COLUMNS)}"),
        table.open(newline="", encoding="utf-8") as file,
    ):
        for line, row in enumerate(csv.DictReader(file), 2):
            try:
                rows.append((int(row["index"]), Path(row["image"]).name, float(row["angle"])))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"line {line} has no valid index, image or angle") from error
            if not math.isfinite(rows[-1][2]):
                raise ValueError(f"line {line} has the angle {row['angle']}")
    if len(rows) < 10:
        raise SecateurError(f"{table} has {len(rows)} frames", remedy="use at least 10, for three parts")
    return sorted(rows)
