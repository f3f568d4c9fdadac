"""Invalid settings are refused, and the defaults suit each other."""

from __future__ import annotations

from typing import Any

import pytest

from secateur.errors import UsageError
from secateur.training.settings import Training


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
        ("schedule", "exponential"),
        ("total_epochs", 0),
        ("ema", 1.0),
        ("ema", 0),
        ("norm_batches", -1),
        ("temperature", 0.0),
        ("teacher_weight", 1.1),
        ("feature_weight", -0.5),
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
        {"schedule": "cosine", "milestones": (2,)},
        {"schedule": "linear", "step_every": 2},
        {"total_epochs": 1, "epochs": 2},
        {"warmup_epochs": 1, "schedule": "linear"},
        {"nesterov": True, "optimizer": "adam"},
        {"nesterov": True, "momentum": 0.0},
        {"label_smoothing": 0.1, "loss": "mse"},
    ],
)
def test_settings_that_exclude_each_other(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(settings))):
        Training(**{"epochs": 1, **settings})


def test_milestones_may_be_a_list() -> None:
    assert Training(epochs=3, milestones=[1, 2]) == Training(epochs=3, milestones=(1, 2))  # type: ignore[arg-type]
    assert Training(epochs=0).epochs == 0


def test_the_defaults_suit_each_other() -> None:
    assert Training(epochs=3).schedule == "onecycle" and Training(epochs=3, milestones=(2,)).schedule == "steps"
    assert Training(epochs=3, step_every=1).schedule == "steps"
    assert Training(epochs=3).lr > Training(epochs=3, optimizer="adam").lr > 0
    assert Training(epochs=3, lr=0.3, optimizer="adam").lr == 0.3
