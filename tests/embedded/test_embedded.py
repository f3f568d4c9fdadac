"""The embedded digits are real and distinct, and the embedded network classifies them."""

from __future__ import annotations

import torch

from secateur.embedded import FOLDER, as_images, digits, lenet5


def test_digits() -> None:
    for part, count in (("test", 2000), ("calibration", 512)):
        images, labels = digits(part)
        assert (images.shape, images.dtype) == ((count, 1, 28, 28), torch.float32)
        assert (images.min(), images.max()) == (0, 1)
        assert (labels.shape, labels.dtype) == ((count,), torch.int64)
        # Drawn at random, so each of the ten digits is only about a tenth.
        assert all(0.05 * count < number < 0.2 * count for number in labels.bincount(minlength=10))
        assert labels.max() == 9


def test_no_digit_is_repeated() -> None:
    images = torch.cat([digits("test")[0], digits("calibration")[0]])
    assert len(images.flatten(1).unique(dim=0)) == len(images)


def test_accuracy() -> None:
    images, labels = digits("test")
    model = lenet5()
    assert not model.training
    with torch.no_grad():
        assert (model(images).argmax(1) == labels).float().mean() >= 0.985


def test_the_files_are_small() -> None:
    sizes = [len(file.read_bytes()) for file in FOLDER.iterdir() if file.is_file()]
    assert 1e6 < sum(sizes) < 2.6e6


def test_as_images() -> None:
    pixels = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(3, 1, 1)
    assert torch.allclose(as_images(pixels), torch.tensor([0, 0.2, 1]).reshape(3, 1, 1, 1))
