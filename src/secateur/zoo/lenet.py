"""The LeNets: small networks for grey images of handwritten digits, 28x28."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d


class LeNet300100(nn.Module):
    """Three fully connected layers, 784-300-100-10: 266,610 parameters.

    >>> LeNet300100()(torch.zeros(1, 1, 28, 28)).shape
    torch.Size([1, 10])
    """

    input_shape = (1, 28, 28)

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(784, 300)
        self.fc2 = nn.Linear(300, 100)
        self.fc3 = nn.Linear(100, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the class scores of a batch of images."""
        x = torch.relu(self.fc1(x.flatten(1)))
        return self.fc3(torch.relu(self.fc2(x)))


class LeNet5(nn.Module):
    """The LeNet-5 of the pruning papers, from Caffe, 20-50-500-10: 431,080 parameters.

    >>> LeNet5()(torch.zeros(1, 1, 28, 28)).shape
    torch.Size([1, 10])

    Unlike Caffe's, it also has a ReLU after each convolution, before the pooling.
    """

    input_shape = (1, 28, 28)

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.fc1 = nn.Linear(50 * 4 * 4, 500)
        self.fc2 = nn.Linear(500, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the class scores of a batch of images."""
        x = max_pool2d(torch.relu(self.conv1(x)), 2)
        x = max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


class LeNet5Classic(nn.Module):
    """LeNet-5 in the sizes of 1998, 6-16-120-84-10, with ReLU and max pooling: 61,706 parameters.

    >>> LeNet5Classic()(torch.zeros(1, 1, 28, 28)).shape
    torch.Size([1, 10])
    """

    input_shape = (1, 28, 28)

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the class scores of a batch of images."""
        x = max_pool2d(torch.relu(self.conv1(x)), 2)
        x = max_pool2d(torch.relu(self.conv2(x)), 2)
        x = torch.relu(self.fc1(x.flatten(1)))
        return self.fc3(torch.relu(self.fc2(x)))
