"""The learning rates equal those of torch's schedulers."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from secateur.training.learning_rates import END, START, learning_rate
from secateur.training.settings import Training


def rates_of(scheduler: Any, optimizer: torch.optim.Optimizer, epochs: int) -> list[float]:
    rates = []
    for _ in range(epochs):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def sgd(lr: float) -> torch.optim.SGD:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr)


@pytest.mark.parametrize(("milestones", "gamma"), [((25, 35), 0.1), ((60, 120, 160), 0.2), ((1,), 0.5), ((), 0.1)])
def test_milestones_equal_those_of_torch(milestones: tuple[int, ...], gamma: float) -> None:
    optimizer = sgd(0.05)
    wanted = rates_of(torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma), optimizer, 170)
    settings = Training(epochs=170, lr=0.05, schedule="steps", milestones=milestones, gamma=gamma)
    assert [learning_rate(settings, epoch) for epoch in range(170)] == pytest.approx(wanted, rel=1e-12)


def test_equal_steps_equal_those_of_torch() -> None:
    optimizer = sgd(0.05)
    wanted = rates_of(torch.optim.lr_scheduler.StepLR(optimizer, 30, 0.5), optimizer, 300)
    settings = Training(epochs=300, lr=0.05, step_every=30, gamma=0.5)
    assert [learning_rate(settings, epoch) for epoch in range(300)] == pytest.approx(wanted, rel=1e-12)


def test_the_warm_up_is_linear() -> None:
    settings = Training(epochs=10, lr=0.4, warmup_epochs=2, milestones=(5,))
    rates = [learning_rate(settings, epoch, (batch + 1) / 4) for epoch in range(3) for batch in range(4)]
    assert rates == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.4, 0.4, 0.4, 0.4])
    assert learning_rate(settings, 5, 0.5) == pytest.approx(0.04)


def test_cosine_equals_that_of_torch() -> None:
    optimizer = sgd(0.05)
    wanted = rates_of(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40, 0.05 * END), optimizer, 40)
    settings = Training(epochs=40, lr=0.05, schedule="cosine")
    assert [learning_rate(settings, epoch) for epoch in range(40)] == pytest.approx(wanted, rel=1e-9)


def test_linear_equals_that_of_torch_with_its_warm_up() -> None:
    optimizer = sgd(0.05)
    wanted = rates_of(torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, END, 40), optimizer, 40)
    settings = Training(epochs=40, lr=0.05, schedule="linear")
    assert [learning_rate(settings, epoch) for epoch in range(40)] == pytest.approx(wanted, rel=1e-9)
    warm = replace(settings, epochs=44, warmup_epochs=4)
    assert [learning_rate(warm, epoch) for epoch in range(4)] == pytest.approx([0.0, 0.0125, 0.025, 0.0375])
    assert [learning_rate(warm, epoch) for epoch in range(4, 44)] == pytest.approx(wanted, rel=1e-9)


def test_onecycle_is_near_that_of_torch() -> None:
    """Torch counts its phases in batches from 0, so that its waves are one batch shorter than ours."""
    epochs, length = 10, 1000
    optimizer = sgd(0.05)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.05, epochs * length, pct_start=0.3, div_factor=1 / START, final_div_factor=START / END
    )
    wanted = rates_of(scheduler, optimizer, epochs * length - 1)
    settings = Training(epochs=epochs, lr=0.05, schedule="onecycle")
    found = [learning_rate(settings, e, b / length) for e in range(epochs) for b in range(length)][:-1]
    assert found == pytest.approx(wanted, abs=0.05 * 1e-3)


@pytest.mark.parametrize("schedule", ["onecycle", "cosine", "linear"])
@pytest.mark.parametrize("warmup", [0, 2])
def test_falling_schedules_end_low_and_have_their_maximum_once(schedule: Any, warmup: int) -> None:
    settings = Training(epochs=10, lr=0.4, schedule=schedule, warmup_epochs=warmup)
    rates = [learning_rate(settings, epoch, batch / 30) for epoch in range(10) for batch in range(1, 31)]
    assert max(rates) == pytest.approx(0.4, rel=1e-2) and rates[-1] == pytest.approx(0.4 * END)
    top = rates.index(max(rates))
    assert top == (59 if warmup else {"onecycle": 89}.get(schedule, 0))
    assert all(a <= b for a, b in itertools.pairwise(rates[: top + 1]))
    assert all(a >= b for a, b in itertools.pairwise(rates[top:]))


@pytest.mark.parametrize(
    "settings",
    [
        Training(epochs=12, lr=0.1, milestones=(6, 9)),
        Training(epochs=12, lr=0.1, step_every=4),
        Training(epochs=12, lr=0.1, schedule="cosine", warmup_epochs=1),
        Training(epochs=12, lr=0.1),
    ],
)
def test_rewinding_trains_the_end_of_the_schedule(settings: Training) -> None:
    rewound = replace(settings, epochs=4, total_epochs=12)
    for epoch, through in itertools.product(range(4), (0.0, 0.4, 1.0)):
        assert learning_rate(rewound, epoch, through) == learning_rate(settings, epoch + 8, through)
