"""The drive is split by time, and its table is checked."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from secateur.data import dataset
from secateur.errors import SecateurError


def make(root: Path, count: int = 21) -> Path:
    folder = root / "driving"
    (folder / "images").mkdir(parents=True)
    rows = []
    for index in range(count):
        pixels = np.full((120, 160, 3), (index, 2 * index, 255), np.uint8)
        pixels[0, 1] = 7
        Image.fromarray(pixels).save(folder / "images" / f"{index}_frame.png")
        rows.append(f"{index},{index}_frame.png,{index / 100 - 0.1},0.4")
    rows = rows[3:] + rows[:3]  # not in order
    (folder / "frames.csv").write_text("\n".join(["index,image,angle,throttle", *rows]) + "\n")
    return folder


def test_parts_by_time(tmp_path: Path) -> None:
    make(tmp_path)
    for part, frames in (
        ("train", range(16)),
        ("validation", range(16, 18)),
        ("test", range(18, 21)),
        ("train+validation", range(18)),
    ):
        data = dataset("driving", part, tmp_path)
        assert data.images.shape == (len(frames), 3, 120, 160)
        assert data.images[:, 0, 5, 5].tolist() == list(frames)
        torch.testing.assert_close(data.targets, torch.tensor([index / 100 - 0.1 for index in frames]))
    assert data.images[4, :, 0, 1].tolist() == [7, 7, 7]  # the second pixel of the first row
    assert data.task == "regression" and data.classes == () and data.targets.dtype == torch.float32
    assert data.inputs(torch.tensor([0]))[0, 2].unique().tolist() == pytest.approx([2 * 7 / 255 - 1, 1.0])


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("", "has 0 frames"),
        ("index,image\n0,0_frame.png\n", "line 2 has no valid"),
        ("index,image,angle\n0,0_frame.png\n", "line 2 has no valid"),
        ("index,image,angle\n0,0_frame.png,left\n", "line 2 has no valid"),
        ("index,image,angle\n0,0_frame.png,0\n1,1_frame.png,nan\n", "line 3 has the angle nan"),
        ("index,image,angle\n" + "0,lost.png,0\n" * 30, "names lost.png, which is not in images/"),
    ],
)
def test_invalid_tables_are_refused(tmp_path: Path, table: str, words: str) -> None:
    (make(tmp_path) / "frames.csv").write_text(table)
    with pytest.raises(SecateurError) as caught:
        dataset("driving", "train", tmp_path)
    assert words in str(caught.value) and caught.value.remedy


def test_a_missing_drive_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SecateurError, match=r"there is no .*frames\.csv"):
        dataset("driving", "train", tmp_path)


def test_a_damaged_frame(tmp_path: Path) -> None:
    frame = make(tmp_path) / "images" / "20_frame.png"
    frame.write_bytes(frame.read_bytes()[:60])
    assert len(dataset("driving", "validation", tmp_path)) == 2
    with pytest.raises(SecateurError, match=r"20_frame\.png is not a readable image"):
        dataset("driving", "test", tmp_path)


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(SecateurError, match="PIL is not installed") as caught:
        dataset("driving", "test", tmp_path)
    assert caught.value.remedy == "pip install pillow"
