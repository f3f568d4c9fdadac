"""Image files are read when they are indexed, resized and cropped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from secateur.data.images import ImageFiles, open_image, read_image
from secateur.errors import SecateurError


def test_other_sizes_are_resized_and_cropped(tmp_path: Path) -> None:
    pixels = np.zeros((256, 512, 3), np.uint8)
    pixels[:, 144:368] = 255  # the centre, 224 wide
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    assert read_image(tmp_path / "wide.png", (224, 224)).unique().tolist() == [255]
    assert read_image(tmp_path / "wide.png", (230, 230)).unique().numel() > 1
    Image.new("L", (224, 224), 9).save(tmp_path / "grey.png")
    assert read_image(tmp_path / "grey.png", (224, 224)).unique().tolist() == [9]
    Image.fromarray(np.zeros((224, 224), np.int32)).save(tmp_path / "deep.tiff")
    with pytest.raises(SecateurError, match="more than 8 bits"):
        read_image(tmp_path / "deep.tiff", (224, 224))


def test_image_files_have_the_shape_of_a_tensor() -> None:
    images = ImageFiles((Path("a"), Path("b")), (8, 9))
    assert len(images) == 2 and images.shape == (2, 3, 8, 9)


def test_only_indexed_files_are_read(tmp_path: Path) -> None:
    Image.new("RGB", (9, 8), (1, 2, 3)).save(tmp_path / "a.png")
    images = ImageFiles((tmp_path / "missing.png", tmp_path / "a.png"), (8, 9))
    assert images[1:][0, :, 0, 0].tolist() == [1, 2, 3]
    taken = images.take(torch.tensor([1, 0]))
    assert [file.name for file in taken.files] == ["a.png", "missing.png"]
    with pytest.raises(SecateurError, match="is not a readable image: FileNotFoundError"):
        taken[torch.tensor([1])]


def test_images_are_opened_in_colour_or_grey(tmp_path: Path) -> None:
    Image.new("RGB", (5, 4), (255, 255, 255)).save(tmp_path / "a.png")
    assert open_image(tmp_path / "a.png", "L").getpixel((0, 0)) == 255
    assert open_image(tmp_path / "a.png", "RGB").size == (5, 4)


@pytest.mark.parametrize("seed", range(5))
def test_random_crops_against_their_definition(tmp_path: Path, seed: int) -> None:
    """Each pixel holds its own place, so that the crop can be read off the result."""
    width, height = 64, 48
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    Image.fromarray(np.stack([4 * x, 4 * y, 0 * x], -1).astype(np.uint8)).save(tmp_path / "a.png")
    draws = torch.rand(5, 40, generator=torch.Generator().manual_seed(seed))
    images = ImageFiles((tmp_path / "a.png",), (20, 20)).crops(torch.zeros(40, dtype=torch.long), draws)
    assert images.shape == (40, 3, 20, 20)
    for image, (area, ratio, left, top, flip) in zip(images.float(), draws.T.tolist(), strict=True):
        part = (0.08 + 0.92 * area) * width * height
        shape = (4 / 3) ** (2 * ratio - 1)
        wide, high = min(width, round((part * shape) ** 0.5)), min(height, round((part / shape) ** 0.5))
        first, last = (image[0, 0, 0], image[0, 0, -1]) if flip < 0.5 else (image[0, 0, -1], image[0, 0, 0])
        step_x, step_y = wide / 20, high / 20  # source pixels of one pixel of the crop
        begin_x, begin_y = round(left * (width - wide)), round(top * (height - high))
        assert first / 4 == pytest.approx(begin_x + step_x / 2 - 0.5, abs=1 + step_x / 4)
        assert last / 4 == pytest.approx(begin_x + wide - step_x / 2 - 0.5, abs=1 + step_x / 4)
        assert image[1, 0, 0] / 4 == pytest.approx(begin_y + step_y / 2 - 0.5, abs=1 + step_y / 4)
