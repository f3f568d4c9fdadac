"""A small detector as users write them: lists of images, and choices by values that torch.export cannot follow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Detector(nn.Module):
    """Boxes where a map of scores is high: takes a list of images, and returns a dict for each."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1),
            nn.ReLU(),
            nn.Conv2d(width, 8, 3, 1, 1),
        )
        self.objects = nn.Conv2d(8, 1, 1)
        self.head = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 2 + 3))
        self.spare = nn.Linear(8, 8)

    def forward(self, images: list[Tensor], targets: Any = None) -> list[dict[str, Tensor]]:
        sizes = [max(image.shape[axis] for image in images) for axis in (1, 2)]
        batch = images[0].new_zeros(len(images), 3, *sizes)
        for place, image in zip(batch, images, strict=True):
            place[:, : image.shape[1], : image.shape[2]] = image
        features = self.backbone(batch)
        scores = self.objects(features)[:, 0]
        return [self._found(one, score) for one, score in zip(features, scores, strict=True)]

    def _found(self, features: Tensor, scores: Tensor) -> dict[str, Tensor]:
        where = (scores > scores.mean() + scores.std()).nonzero()
        rows = features[:, where[:, 0], where[:, 1]].T
        answer = self.head(rows)
        centre = 2.0 * where.flip(1).float()
        size = 2 + answer[:, :2].sigmoid()
        chances, labels = answer[:, 2:].softmax(1).max(1) if len(rows) else (rows[:, 0], rows[:, 0].long())
        return {"boxes": torch.cat([centre - size, centre + size], 1), "labels": labels, "scores": chances}


def detector(seed: int = 0) -> Detector:
    torch.manual_seed(seed)
    return Detector().eval()


def pictures(batches: int, each: int = 4, seed: int = 1, sizes: tuple[int, ...] = (16,)) -> list[Any]:
    """Return batches of lists of images and targets; the images of a batch have one of the sizes."""
    generator = torch.Generator().manual_seed(seed)
    return [
        ([torch.randn(3, sizes[i % len(sizes)], 16, generator=generator) for _ in range(each)], [None] * each)
        for i in range(batches)
    ]
