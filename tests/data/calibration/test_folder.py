"""Calibration data from a folder of images."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from secateur.data.calibration import Calibration, read_batches
from secateur.data.images import IMAGENET_MEAN, IMAGENET_STD
from secateur.errors import UsageError
from support.calibration_cases import SHAPE, joined, refusal

RANDOM = np.random.default_rng(0)


def write_image(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(pixels).save(path)


def test_a_folder(tmp_path: Path) -> None:
    kinds = ["png", "bmp", "ppm", "PNG"]
    for i, kind in enumerate(kinds):
        write_image(tmp_path / f"class{i % 2}" / f"{i}.{kind}", np.full((4, 5, 3), [i, 50, 100], dtype=np.uint8))
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / ".hidden.png").write_text("no image")
    data = read_batches(str(tmp_path), shape=SHAPE, batch=3)
    assert [len(batch) for batch in data] == [3, 1]
    assert (data.samples, data.labelled) == (4, False)
    assert "ImageNet" in data.origin
    for sample, number in zip(joined(data), [0, 2, 1, 3]):
        for channel, value in enumerate([number, 50, 100]):
            wanted = (value / 255 - IMAGENET_MEAN[channel]) / IMAGENET_STD[channel]
            assert np.allclose(sample[channel], wanted, atol=1e-6)


@pytest.mark.parametrize("kind", ["jpg", "jpeg", "webp", "png"])
@pytest.mark.parametrize("size", [(40, 60), (60, 40), (32, 32), (16, 24)])
def test_images_are_resized_and_cropped(tmp_path: Path, kind: str, size: tuple[int, int]) -> None:
    """The middle third of the longer side is red; it fills more of the image once the ends are cropped."""
    pixels = np.zeros((*size, 3), dtype=np.uint8)
    long = int(size[1] > size[0])
    middle = slice(size[long] // 3, 2 * size[long] // 3)
    pixels[(slice(None), middle) if long else middle] = [255, 0, 0]
    write_image(tmp_path / f"a.{kind}", pixels)
    (found,) = joined(read_batches(str(tmp_path), shape=(3, 32, 32), mean=0, std=1))
    assert found.shape == (3, 32, 32)
    assert 0 <= found.min() and found.max() <= 1
    assert abs(found[0].mean() - max(size) / 3 / min(size)) < 0.05
    assert found[1:].mean() < 0.05
    assert abs(found[0].mean(1 - long)[:16].mean() - found[0].mean(1 - long)[16:].mean()) < 0.1


def test_images_of_the_right_size_are_not_changed(tmp_path: Path) -> None:
    pixels = RANDOM.integers(0, 256, (4, 5, 3), dtype=np.uint8)
    write_image(tmp_path / "a.png", pixels)
    data = read_batches(str(tmp_path), shape=SHAPE, mean=0, std=1)
    assert torch.equal(joined(data)[0], torch.from_numpy(pixels).permute(2, 0, 1) / 255)


def test_a_very_wide_image(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png", np.zeros((1, 20_000, 3), dtype=np.uint8))
    assert read_batches(str(tmp_path), shape=(3, 64, 64)).samples == 1


def test_grey_images(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png", np.full((4, 5, 3), 51, dtype=np.uint8))
    write_image(tmp_path / "b.png", np.full((4, 5), 51, dtype=np.uint8))
    assert torch.allclose(joined(read_batches(str(tmp_path), shape=(1, 4, 5))), torch.tensor(0.2))
    colour = joined(read_batches(str(tmp_path), shape=SHAPE, mean=0, std=1))
    assert colour.shape == (2, *SHAPE) and torch.allclose(colour, torch.tensor(0.2))


def test_a_random_choice_of_images(tmp_path: Path) -> None:
    for i in range(10):
        write_image(tmp_path / f"{i}.png", np.full((4, 5), i, dtype=np.uint8))
    picks = [
        (joined(read_batches(str(tmp_path), shape=(1, 4, 5), samples=6, seed=seed))[:, 0, 0, 0] * 255).round().tolist()
        for seed in (0, 0, 1)
    ]
    assert picks[0] == picks[1] != picks[2]
    assert all(len(set(pick)) == 6 for pick in picks)


@pytest.mark.parametrize("kind", ["jpg", "png", "webp"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.7])
def test_truncated_images_are_refused(tmp_path: Path, kind: str, share: float) -> None:
    write_image(tmp_path / "a.png", np.zeros((4, 5, 3), dtype=np.uint8))
    bad = tmp_path / f"bad.{kind}"
    write_image(bad, RANDOM.integers(0, 256, (40, 50, 3), dtype=np.uint8))
    data = bad.read_bytes()
    bad.write_bytes(data[: int(share * len(data))])
    assert f"{bad} is not a readable image" in refusal(tmp_path)


def test_images_of_more_than_8_bits_are_refused(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png", np.full((4, 5), 40_000, dtype=np.uint16))
    assert "more than 8 bits" in refusal(tmp_path)


def test_unsuitable_folders_are_refused(tmp_path: Path) -> None:
    assert "there is no image in" in refusal(tmp_path)
    assert "images do not fit an input of shape (60,)" in refusal(tmp_path, UsageError, shape=(60,))
    assert "images do not fit" in refusal(tmp_path, UsageError, shape=(4, 8, 8))


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_image(tmp_path / "a.png", np.zeros((4, 5, 3), dtype=np.uint8))
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "pip install pillow" in refusal(tmp_path)


def write_classes(folder: Path) -> Path:
    """Write six images of three classes; the first pixel of each is the number of the class."""
    for i in range(6):
        name = ("ant", "bee", "cat")[i % 3]
        deeper = f"more/{i}.png" if i > 2 else f"{i}.png"
        path = folder / name / deeper
        path.parent.mkdir(parents=True, exist_ok=True)
        write_image(path, np.full((4, 5, 3), i % 3, dtype=np.uint8))
    return folder


def numbers_of(data: Calibration) -> list[tuple[int, int]]:
    """Return the class in the pixels and the label of each sample."""
    return [(round(float(one[0, 0, 0]) * 255), int(label)) for x, y in data for one, label in zip(x, y)]


@pytest.mark.parametrize("samples", [6, 4])
def test_labels_are_the_folders_of_the_classes(tmp_path: Path, samples: int) -> None:
    source = str(write_classes(tmp_path))
    data = read_batches(source, shape=SHAPE, mean=0, std=1, labels=True, samples=samples, batch=4)
    assert data.labelled and data.samples == samples
    assert all(pixel == label for pixel, label in numbers_of(data))
    data = read_batches(source, shape=SHAPE, mean=0, std=1, labels=["dog", "cat", "bee", "ant"])
    assert {pixel: label for pixel, label in numbers_of(data)} == {0: 3, 1: 2, 2: 1}


def test_images_without_a_class_or_of_an_unknown_class_are_refused(tmp_path: Path) -> None:
    write_classes(tmp_path)
    assert "'ant', which is not among the labels" in refusal(tmp_path, UsageError, labels=["bee", "cat"])
    write_image(tmp_path / "loose.png", np.zeros((4, 5, 3), dtype=np.uint8))
    assert "in no folder of a class" in refusal(tmp_path, labels=True)


@pytest.mark.parametrize("names", [False, True])
@pytest.mark.parametrize("start", ["", "\ufeff"])  # spreadsheets write a byte order mark
def test_labels_are_those_of_a_table(tmp_path: Path, names: bool, start: str) -> None:
    write_classes(tmp_path / "photos")
    rows = [
        f'"photos/{name}/{number}.png",{name if names else number}' for number, name in enumerate(("ant", "bee", "cat"))
    ]
    table = tmp_path / "table.csv"
    table.write_text(start + "\n".join(["path,label", *rows[::-1]]), encoding="utf-8")
    data = read_batches(str(table), shape=SHAPE, mean=0, std=1)
    assert data.labelled and numbers_of(data) == [(2, 2), (1, 1), (0, 0)]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "no rows with the columns"),
        ("path,label\n", "no rows with the columns"),
        ("file,label\na.png,1\n", "no rows with the columns"),
        ("path,label\na.png\n", "row 1 of"),
        ("path,label\nnone.png,1\n", "there is no file"),
        ('path,label\n"a', "cannot be read"),
    ],
)
def test_invalid_tables_are_refused(tmp_path: Path, text: str, cause: str) -> None:
    write_image(tmp_path / "a.png", np.zeros((4, 5, 3), dtype=np.uint8))
    (tmp_path / "table.csv").write_text(text)
    assert cause in refusal(tmp_path / "table.csv")
