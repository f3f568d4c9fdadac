"""Networks of the pruning papers.

The command line calls them by name, `zoo:lenet5`. Each has its input's shape, without the batch, in `input_shape`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from secateur.zoo.deepknight import DeepKnight
from secateur.zoo.densenet import DenseNetCifar
from secateur.zoo.lenet import LeNet5, LeNet5Classic, LeNet300100
from secateur.zoo.resnet import ResNetCifar
from secateur.zoo.vgg import VGG16BN
from secateur.zoo.wrn import WideResNet

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "deepknight": DeepKnight,
    "densenet22": partial(DenseNetCifar, 22),
    "densenet22-bc": partial(DenseNetCifar, 22, compact=True),
    "lenet300100": LeNet300100,
    "lenet5": LeNet5,
    "lenet5-classic": LeNet5Classic,
    "resnet20": partial(ResNetCifar, 20),
    "resnet56": partial(ResNetCifar, 56),
    "resnet110": partial(ResNetCifar, 110),
    "resnet20-b": partial(ResNetCifar, 20, shortcut="B"),
    "resnet56-b": partial(ResNetCifar, 56, shortcut="B"),
    "resnet110-b": partial(ResNetCifar, 110, shortcut="B"),
    "vgg16-bn": VGG16BN,
    "wrn16-8": partial(WideResNet, 16, 8),
}

__all__ = [
    "NETWORKS",
    "VGG16BN",
    "DeepKnight",
    "DenseNetCifar",
    "LeNet5",
    "LeNet5Classic",
    "LeNet300100",
    "ResNetCifar",
    "WideResNet",
]
