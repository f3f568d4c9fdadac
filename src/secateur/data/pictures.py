"""Picture files, read when they are asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from secateur.errors import SecateurError
from secateur.program import first_line

if TYPE_CHECKING:  # Pillow is optional
    from PIL.Image import Image

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm"}
MARGIN = 256 / 224  # how much larger the short side is than the crop, as usual for ImageNet


@dataclass(frozen=True)
class Pictures:
    """Files that stand for a tensor of bytes [n, 3, height, width]; what is indexed is read.

    >>> pictures = Pictures((Path("a.jpg"), Path("b.jpg")), (224, 224))
    >>> pictures[torch.tensor([1])].shape
    torch.Size([1, 3, 224, 224])
    """

    files: tuple[Path, ...]
    size: tuple[int, int]  # height and width

    def __len__(self) -> int:
        return len(self.files)

    @property
    def shape(self) -> torch.Size:
        """Of all pictures together, as a tensor has it."""
        return torch.Size((len(self.files), 3, *self.size))

    def __getitem__(self, chosen: Tensor | slice) -> Tensor:
        places = torch.arange(len(self.files))[chosen].tolist()
        pictures = torch.empty(len(places), 3, *self.size, dtype=torch.uint8)
        for row, place in enumerate(places):
            pictures[row] = read_picture(self.files[place], self.size)
        return pictures

    def take(self, chosen: Tensor) -> Pictures:
        """Give the pictures at these places; none is read.

        >>> pictures.take(torch.tensor([1, 0])).files
        (PosixPath('b.jpg'), PosixPath('a.jpg'))
        """
        return replace(self, files=tuple(self.files[place] for place in chosen.tolist()))


def read_picture(path: Path, size: tuple[int, int]) -> Tensor:
    """Read one picture as bytes [3, height, width].

    >>> read_picture(Path("photo.jpg"), (224, 224)).shape
    torch.Size([3, 224, 224])

    A picture of that size is taken as it is. Any other is resized, its short side to 256/224 of what is asked for,
    then cropped at the centre.
    """
    height, width = size
    picture = open_picture(path, "RGB")
    if picture.size != (width, height):
        larger = (round(width * MARGIN), round(height * MARGIN))
        left, top = (larger[0] - width) // 2, (larger[1] - height) // 2
        picture = fitted(picture, larger).crop((left, top, left + width, top + height))
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def open_picture(path: Path, mode: str) -> Image:
    """Read a picture with Pillow, as "RGB" or grey ("L").

    >>> open_picture(Path("photo.jpg"), "L").size
    (640, 480)
    """
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise SecateurError("reading pictures needs Pillow", remedy="pip install pillow") from error
    try:
        with Image.open(path) as file:
            if file.mode.startswith(("I", "F")):
                raise ValueError("it has more than 8 bits per channel")  # Pillow would clip it, not scale it
            return file.convert(mode)
    except Exception as error:
        raise SecateurError(
            f"{path} is not a picture that can be read: {first_line(error)}",
            remedy="remove it, or store it again with 8 bits",
        ) from error


def fitted(picture: Image, size: tuple[int, int]) -> Image:
    """Resize a picture by its short side, then crop it at the centre to width and height.

    >>> fitted(open_picture(Path("photo.jpg"), "RGB"), (32, 32)).size
    (32, 32)
    """
    from PIL import Image, ImageOps

    return ImageOps.fit(picture, size, Image.Resampling.BILINEAR)
