"""DeepKnight: the steering angle of a camera frame (Amini et al. 2018)."""

from __future__ import annotations

from torch import Tensor, nn

CHANNELS, KERNELS, STRIDES = (24, 36, 48, 64, 64), (5, 5, 3, 3, 3), (2, 2, 2, 1, 1)


class DeepKnight(nn.Module):
    """Five convolutions and three linear layers, with one number for each image.

    >>> DeepKnight()(torch.zeros(2, 3, 120, 160)).shape
    torch.Size([2])

    There is no padding and no batch norm. The size of the first linear layer depends on the frame: for 120x160 it has
    8,065,000 of the 8,268,901 parameters.

    Args:
        height: of the frames.
        width: of the frames.
    """

    input_shape: tuple[int, int, int] = (3, 120, 160)

    def __init__(self, height: int = 120, width: int = 160) -> None:
        super().__init__()
        self.input_shape = (3, height, width)
        layers: list[nn.Module] = []
        before = 3
        for after, kernel, stride in zip(CHANNELS, KERNELS, STRIDES):
            layers += [nn.Conv2d(before, after, kernel, stride), nn.ReLU()]
            before = after
            height, width = ((size - kernel) // stride + 1 for size in (height, width))
        if height < 1 or width < 1:
            raise ValueError(f"frames of {self.input_shape} are too small; use at least 53x53")
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.Linear(before * height * width, 1000), nn.ReLU(), nn.Linear(1000, 100), nn.ReLU(), nn.Linear(100, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the angle of each image of a batch."""
        return self.head(self.features(x).flatten(1)).squeeze(1)
