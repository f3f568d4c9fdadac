"""Image files, read when they are needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from secateur.errors import explained
from secateur.optional import require

if TYPE_CHECKING:  # Pillow is optional
    from PIL.Image import Image

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm"}
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LEAST_AREA, MOST_RATIO = 0.08, 4 / 3  # of random crops, as usual for ImageNet
MARGIN = 256 / 224  # ratio of the short side to the crop, as usual for ImageNet


@dataclass(frozen=True)
class ImageFiles:
    """Image files that act as a tensor of bytes [n, 3, height, width]; indexing reads the files.

    >>> images = ImageFiles((Path("a.jpg"), Path("b.jpg")), (224, 224))
    >>> images[torch.tensor([1])].shape
    torch.Size([1, 3, 224, 224])
    """

    files: tuple[Path, ...]
    size: tuple[int, int]  # height and width

    def __len__(self) -> int:
        return len(self.files)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.files), 3, *self.size))

    def __getitem__(self, chosen: Tensor | slice) -> Tensor:
        indices = torch.arange(len(self.files))[chosen].tolist()
        images = torch.empty(len(indices), 3, *self.size, dtype=torch.uint8)
        for row, index in enumerate(indices):
            images[row] = read_image(self.files[index], self.size)
        return images

    def crops(self, chosen: Tensor, draws: Tensor) -> Tensor:
        """Return random crops of these files, resized and flipped or not, as is usual for training on ImageNet.

        Args:
            draws: numbers from 0 to 1, [5, n]: for the area, the ratio of the sides, the place (two) and the flip.
        """
        images = torch.empty(len(chosen), 3, *self.size, dtype=torch.uint8)
        for row, (index, numbers) in enumerate(zip(chosen.tolist(), draws.T.tolist(), strict=True)):
            images[row] = resized_crop(self.files[index], self.size, numbers)
        return images

    def take(self, chosen: Tensor) -> ImageFiles:
        """Return the files at these indices, unread."""
        return replace(self, files=tuple(self.files[index] for index in chosen.tolist()))


def read_image(path: Path, size: tuple[int, int]) -> Tensor:
    """Return one image as bytes [3, height, width].

    An image of another size is resized, its short side to 256/224 of the given size, and cropped at the centre.
    """
    height, width = size
    image = open_image(path, "RGB")
    if image.size != (width, height):
        larger = (round(width * MARGIN), round(height * MARGIN))
        left, top = (larger[0] - width) // 2, (larger[1] - height) // 2
        image = resize_and_crop(image, larger).crop((left, top, left + width, top + height))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def resized_crop(path: Path, size: tuple[int, int], draws: Sequence[float]) -> Tensor:
    """Return one random crop as bytes [3, height, width]: 8% to all of the area, sides of 3:4 to 4:3, resized.

    A crop that would be larger than the image is cut down to it. The draws are those of `ImageFiles.crops`.
    """
    from PIL import Image, ImageOps

    image = open_image(path, "RGB")
    area = (LEAST_AREA + (1 - LEAST_AREA) * draws[0]) * image.width * image.height
    ratio = math.exp((2 * draws[1] - 1) * math.log(MOST_RATIO))  # as likely wide as tall
    width = max(1, min(image.width, round(math.sqrt(area * ratio))))
    height = max(1, min(image.height, round(math.sqrt(area / ratio))))
    left, top = round(draws[2] * (image.width - width)), round(draws[3] * (image.height - height))
    box = (left, top, left + width, top + height)
    made = image.resize((size[1], size[0]), Image.Resampling.BILINEAR, box=box)
    made = ImageOps.mirror(made) if draws[4] >= 0.5 else made
    return torch.from_numpy(np.array(made)).permute(2, 0, 1)


def open_image(path: Path, mode: str) -> Image:
    """Return a Pillow image of a file, as "RGB" or grey ("L")."""
    require("PIL", install="pillow")
    from PIL import Image

    with (
        explained(f"{path} is not a readable image", remedy="remove it, or store it again with 8 bits per channel"),
        Image.open(path) as file,
    ):
        if file.mode.startswith(("I", "F")):
            raise ValueError("it has more than 8 bits per channel")  # Pillow would clip it, not scale it
        return file.convert(mode)


def resize_and_crop(image: Image, size: tuple[int, int]) -> Image:
    """Return an image resized by its short side, then cropped at the centre to (width, height)."""
    from PIL import Image, ImageOps

    return ImageOps.fit(image, size, Image.Resampling.BILINEAR)
