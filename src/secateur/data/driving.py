"""Camera frames of one drive, and the steering angle at each."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import torch

from secateur.data.base import Data
from secateur.data.pictures import Pictures
from secateur.errors import SecateurError

HEIGHT, WIDTH = 120, 160
COLUMNS = ("index", "image", "angle")


def read_driving(part: str, root: Path) -> Data:
    """Read one part of the drive: the first 80 % for training, then 10 % for validation, the last 10 % for the test.

    >>> read_driving("test", Path("data")).targets.dtype
    torch.float32

    Neighbouring frames are all but the same, so they are split by time, not at random. In `driving/frames.csv` each
    row has the frame's number, its file in `driving/images` and its angle from -1 to 1. Pixels are scaled to -1..1.
    """
    table = root / "driving" / "frames.csv"
    if not table.is_file():
        raise SecateurError(
            f"there is no {table}",
            remedy=f"put a drive there: frames.csv with {', '.join(COLUMNS)}, and the frames in images/; or name "
            "another folder in SECATEUR_DATA",
        )
    rows = _rows(table)
    first, last = len(rows) * 8 // 10, len(rows) * 9 // 10
    bounds = {"train": (0, first), "validation": (first, last), "test": (last, None), "train+validation": (0, last)}
    begin, end = bounds[part]
    _, names, angles = zip(*rows[begin:end])
    files = tuple(table.parent / "images" / name for name in names)
    if absent := next((file for file in files if not file.is_file()), None):
        raise SecateurError(f"{table} names {absent.name}, which is not in images/", remedy="put it there")
    images = Pictures(files, (HEIGHT, WIDTH))[:]
    return Data(images, torch.tensor(angles), (0.5,) * 3, (0.5,) * 3, task="regression")


def _rows(table: Path) -> list[tuple[int, str, float]]:
    """Number, file and angle of each frame, in the order of time."""
    rows = []
    try:
        with table.open(newline="", encoding="utf-8") as file:
            for line, row in enumerate(csv.DictReader(file), 2):
                try:
                    rows.append((int(row["index"]), Path(row["image"]).name, float(row["angle"])))
                except (KeyError, TypeError, ValueError) as error:
                    raise ValueError(f"line {line} lacks a sound index, image or angle") from error
                if not math.isfinite(rows[-1][2]):
                    raise ValueError(f"line {line} has the angle {row['angle']}")
    except (OSError, ValueError, csv.Error) as error:
        raise SecateurError(
            f"{table} cannot be read: {error}", remedy=f"write it as csv with {', '.join(COLUMNS)}"
        ) from error
    if len(rows) < 10:
        raise SecateurError(f"{table} has {len(rows)} frames", remedy="give at least 10, for three parts")
    return sorted(rows)
