"""An estimate of the time of pruning: larger for more samples and more effort, and of the right size."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

import secateur as sc
from secateur.pruning.estimate import Estimate, duration, estimate


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).eval()


def test_it_grows_with_samples_and_effort() -> None:
    model, example = convolutions(), torch.randn(1, 3, 48, 48)
    few, many = (estimate(model, example, samples, sc.PruneSettings()) for samples in (100, 20_000))
    assert few.seconds < many.seconds and few.forward_seconds < many.forward_seconds
    thorough = estimate(model, example, 20_000, sc.PruneSettings(effort="thorough"))
    plain = estimate(model, example, 20_000, sc.PruneSettings(method="ft"))
    assert plain.seconds < many.seconds < thorough.seconds


def test_it_is_of_the_right_size() -> None:
    """Within a factor of ten, on a machine that may be busy."""
    model, x = convolutions(), torch.randn(256, 3, 48, 48)
    expected = estimate(model, x[:1], 256, sc.PruneSettings())
    started = time.perf_counter()
    sc.prune(model, x, {"macs": "60%"}, samples=None)
    took = time.perf_counter() - started
    assert took / 10 < expected.seconds < 10 * took


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "1 s"), (41.3, "42 s"), (170, "3 minutes"), (7200, "2.0 hours")])
def test_times_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_sentence() -> None:
    assert str(Estimate(170, 24)) == "about 3 minutes (a forward pass over the samples takes 24 s)"
