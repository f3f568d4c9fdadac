"""A trained LeNet-5 with digits.

Both are inside the package, so that a demonstration downloads nothing. The digits are from MNIST: 2,000 of its test
set, and 512 of the images that the network was trained on, for calibration.
`benchmarks/embed_demo.py` makes the files.
"""

from __future__ import annotations

from importlib import resources
from typing import Literal

import numpy as np
import torch
from safetensors.torch import load
from torch import Tensor

from secateur.zoo.lenet import LeNet5

FOLDER = resources.files(__name__)


def lenet5() -> LeNet5:
    """Return LeNet-5 trained on MNIST, in evaluation mode.

    >>> lenet5()(digits("test")[0]).argmax(1)
    """
    model = LeNet5()
    model.load_state_dict(load((FOLDER / "lenet5.safetensors").read_bytes()))
    return model.eval()


def digits(part: Literal["test", "calibration"]) -> tuple[Tensor, Tensor]:
    """Return images of MNIST, scaled as the network takes them, and their labels.

    >>> images, labels = digits("test")
    >>> images.shape, labels.shape
    (torch.Size([2000, 1, 28, 28]), torch.Size([2000]))

    Args:
        part: "test" for 2,000 test images, "calibration" for 512 of the training images.
    """
    with (FOLDER / "digits.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        pixels, labels = (torch.from_numpy(arrays[f"{part}_{kind}"]) for kind in ("images", "labels"))
    return as_images(pixels), labels.long()


def as_images(pixels: Tensor) -> Tensor:
    """Return bytes [n, 28, 28] as inputs of the LeNets: floats from 0 to 1, [n, 1, 28, 28]."""
    return pixels.unsqueeze(1).float() / 255
