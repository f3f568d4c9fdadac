"""Invalid settings are refused, and the learning rate equals that of torch's schedulers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from secateur.errors import UsageError
from secateur.training.settings import Training, learning_rate


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
    settings = Training(epochs=170, lr=0.05, milestones=milestones, gamma=gamma)
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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", -1),
        ("epochs", 1.5),
        ("epochs", True),
        ("optimizer", "lamb"),
        ("lr", 0),
        ("lr", float("nan")),
        ("lr", "1e-4"),
        ("momentum", 1.0),
        ("momentum", -0.1),
        ("nesterov", 1),
        ("weight_decay", -1e-4),
        ("milestones", (30, 30)),
        ("milestones", (60, 30)),
        ("milestones", (0,)),
        ("milestones", 30),
        ("milestones", "30"),
        ("step_every", 0),
        ("gamma", 0.0),
        ("warmup_epochs", -1),
        ("label_smoothing", 1.0),
        ("clip_norm", 0.0),
        ("loss", "hinge"),
        ("amp", "int8"),
        ("compile", "yes"),
        ("sync_batchnorm", None),
        ("memory_format", "nhwc"),
        ("seed", -1),
    ],
)
def test_an_invalid_value_is_reported_with_its_name(field: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"^{field} is {value!r}".replace("(", r"\(").replace(")", r"\)")) as caught:
        Training(**{"epochs": 1, field: value})
    assert caught.value.remedy


@pytest.mark.parametrize(
    "settings",
    [
        {"step_every": 3, "milestones": (2,)},
        {"nesterov": True, "optimizer": "adam"},
        {"nesterov": True, "momentum": 0.0},
        {"label_smoothing": 0.1, "loss": "mse"},
    ],
)
def test_settings_that_exclude_each_other(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(settings))):
        Training(epochs=1, **settings)


def test_milestones_may_be_a_list() -> None:
    assert Training(epochs=3, milestones=[1, 2]) == Training(epochs=3, milestones=(1, 2))  # type: ignore[arg-type]
    assert Training(epochs=0).epochs == 0
