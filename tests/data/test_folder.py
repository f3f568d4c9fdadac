"""Images in folders of parts and classes, read when they are indexed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from secateur.data import Batches, dataset
from secateur.errors import SecateurError, UsageError


def write_image(path: Path, colour: int, size: tuple[int, int] = (16, 16)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (colour, 0, 255)).save(path)


def make(root: Path, *parts: str, count: int = 10) -> str:
    for part in parts:
        for label, name in enumerate(("cat", "dog")):
            for number in range(count):
                write_image(root / part / name / f"{number}.png", 100 * label + number)
    return f"imagefolder:{root}"


def test_train_val_test(tmp_path: Path) -> None:
    name = make(tmp_path, "train", "val", "test")
    write_image(tmp_path / "test" / "ant" / "0.png", 7)
    sizes = {part: len(dataset(name, part)) for part in ("train", "validation", "test", "train+validation")}
    assert sizes == {"train": 20, "validation": 20, "test": 21, "train+validation": 40}
    data = dataset(name, "train", size=16)
    assert data.classes == ("ant", "cat", "dog")  # of all parts, so that numbers mean the same in each
    assert data.targets.tolist() == [1] * 10 + [2] * 10
    x, y = next(Batches(data, 20, shuffle=True, augment=True, seed=0).epoch(0))
    assert x.shape == (20, 3, 16, 16)
    pixels = x[:, 0, 0, 0] * 0.229 + 0.485
    assert torch.equal((pixels * 255).round() >= 100, y == 2)


def test_without_a_test_folder_val_is_the_test(tmp_path: Path) -> None:
    name = make(tmp_path, "train", "val")
    train, validation, test = (dataset(name, part) for part in ("train", "validation", "test"))
    assert (len(train), len(validation), len(test)) == (18, 2, 20)
    assert not set(train.images.files) & set(validation.images.files)
    assert all("val" in file.parts for file in test.images.files)


def test_calibration_images_are_for_training_where_there_are_no_others(tmp_path: Path) -> None:
    name = make(tmp_path, "calibration", "test")
    sizes = [len(dataset(name, part)) for part in ("train", "validation", "test")]
    assert sizes == [18, 2, 20]
    make(tmp_path, "train", count=20)
    assert len(dataset(name, "train+validation")) == 40  # those in `train` alone


def test_a_folder_in_the_root(tmp_path: Path) -> None:
    make(tmp_path / "photos", "train")
    assert len(dataset("imagefolder:photos", "train+validation", tmp_path)) == 20


def test_numbers_instead_of_folders(tmp_path: Path) -> None:
    for number in (0, 3, 17):
        write_image(tmp_path / "test" / f"{number}_abc.png", number)
    data = dataset(f"imagefolder:{tmp_path}", "test", size=16)
    assert data.targets.tolist() == [0, 17, 3] and len(data.classes) == 18
    assert data.images[torch.tensor([1])][0, :, 0, 0].tolist() == [17, 0, 255]


def test_only_indexed_images_are_read(tmp_path: Path) -> None:
    name = make(tmp_path, "train", "test")
    data = dataset(name, "test", size=16)
    (tmp_path / "test/cat/3.png").write_bytes(b"no image")
    assert data.images[torch.tensor([12, 2])][:, 0, 0, 0].tolist() == [102, 2]
    assert data.take(torch.tensor([4, 3])).images.shape == (2, 3, 16, 16)
    with pytest.raises(SecateurError, match=r"3\.png is not a readable image"):
        data.images[torch.tensor([3])]


def test_unsuitable_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        dataset(f"imagefolder:{tmp_path}/nowhere", "train")
    with pytest.raises(SecateurError, match="there are no images"):
        dataset(f"imagefolder:{tmp_path}", "train")
    name = make(tmp_path, "train")
    with pytest.raises(SecateurError, match=r"no images in .* for the part 'test'"):
        dataset(name, "test")
    write_image(tmp_path / "train" / "7_x.png", 0)
    with pytest.raises(SecateurError, match="some images are in folders"):
        dataset(name, "train")
    write_image(tmp_path / "train" / "photo.png", 0)
    with pytest.raises(SecateurError, match="neither by a folder nor by a number"):
        dataset(name, "train")
