"""The memory of a forward pass per sample, and batches that fit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from secateur.network.batches import batch_size
from secateur.network.footprint import batch_that_fits, footprint, split_to_fit


class Net(nn.Module):
    """100 numbers in, 100, 200 (in place: nothing more), 10 out, 4 bytes each."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(100, 100), nn.Linear(100, 200), nn.Linear(200, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        x = F.relu(self.b(x), inplace=True)
        return self.c(x.view(len(x), -1))


def test_the_bytes_of_a_forward_pass_by_hand() -> None:
    found = footprint(Net(), ((torch.zeros(5, 100),), {}))
    assert found.backward == 4 * (100 + 200 + 10)
    assert found.forward == 4 * (100 + 200)  # the first is needed until the second is there


def test_the_mode_and_the_gradients_are_left_alone() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).train()
    footprint(network, ((torch.randn(5, 3),), {}))
    assert network.training and network[1].training and network[1].num_batches_tracked == 0


@pytest.mark.parametrize(
    ("memory", "samples"), [(1, 1), (4 * 300, 1), (4 * 300 * 5, 4), (4 * 300 * 63, 32), (4 * 300 * 64, 64)]
)
def test_as_many_samples_as_fit(memory: int, samples: int) -> None:
    call = ((torch.zeros(200, 100),), {})
    assert batch_that_fits(Net(), call, memory) == samples
    parts = list(split_to_fit(Net(), [call], memory))
    assert max(map(batch_size, parts)) == samples and sum(map(batch_size, parts)) == 200
    assert torch.equal(torch.cat([part[0][0] for part in parts]), call[0][0])


def test_gradients_take_more() -> None:
    call = ((torch.zeros(200, 100),), {})
    assert batch_that_fits(Net(), call, 4 * 310 * 8 - 1, backward=True) == 4
    assert batch_that_fits(Net(), call, 4 * 310 * 8, backward=True) == 8


def test_with_enough_memory_batches_stay_as_they_are() -> None:
    call = ((torch.zeros(1000, 100),), {})
    (part,) = split_to_fit(Net(), [call])
    assert batch_size(part) == 1000


def test_a_network_that_does_not_run_reports_that_later() -> None:
    assert batch_that_fits(Net(), ((torch.zeros(5, 3),), {}), 1) == 64
