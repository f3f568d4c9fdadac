"""Layers are timed during a forward pass, each up to the next one."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from secateur.profiling.stopwatch import Stopwatch, clock, layer_times


def busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Slow(nn.Module):
    """Two layers with work before, between and after them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        busy(0.01)
        x = self.first(x)
        busy(0.03)
        x = self.second(x)
        busy(0.02)
        return x


def test_the_time_up_to_the_next_layer_counts() -> None:
    torch.set_num_threads(1)
    (found,) = layer_times([Slow()], torch.zeros(1, 4), 2)
    assert found.keys() == {"first.weight", "second.weight"}
    assert 40 <= found["first.weight"] < 60  # what runs before the first layer counts for it
    assert 20 <= found["second.weight"] < 35


def test_a_layer_that_is_called_twice_counts_twice() -> None:
    layer = nn.Linear(4, 4)
    calls = []
    with Stopwatch(layer, lambda *call: calls.append(call)) as watch:
        layer(layer(torch.zeros(1, 4)))
    assert len(calls) == 2 and watch.stop().keys() == {"weight"}


def test_one_thread_is_timed_by_its_own_clock() -> None:
    torch.set_num_threads(1)
    assert clock() is time.thread_time
