"""VGG16 with batch norm for 32x32 images."""

from __future__ import annotations

from torch import Tensor, nn

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class VGG16BN(nn.Module):
    """Thirteen 3x3 convolutions, each with batch norm, in five stages; then two linear layers.

    >>> VGG16BN()(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])

    Args:
        classes: number of class scores.
        dropout: probability of zeroing an activation.
    """

    input_shape = (3, 32, 32)

    def __init__(self, classes: int = 10, dropout: float = 0.5) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = 3
        for stage in STAGES:
            for number, after in enumerate(stage, 1):
                last = number == len(stage)
                layers += [nn.Conv2d(width, after, 3, 1, 1), nn.BatchNorm2d(after), nn.ReLU()]
                layers.append(nn.MaxPool2d(2) if last else nn.Dropout(dropout))
                width = after
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(512, 512),
            nn.BatchNorm1d(512),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(512, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the class scores of a batch of images."""
        return self.classifier(self.features(x).flatten(1))
