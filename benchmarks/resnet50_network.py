"""ResNet-50 with real weights as a network that a recipe can name: `benchmarks/resnet50_network.py:resnet50`."""

from __future__ import annotations

from torch import nn

from checkpoints import trained
from secateur.data import data_root


def resnet50() -> nn.Module:
    """Return torchvision's ResNet-50 with the weights in the folder of the data sets."""
    return trained("torchvision:resnet50", data_root())
