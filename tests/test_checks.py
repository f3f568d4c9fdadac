"""Numbers out of range and unknown keywords are refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

import secateur as sc
from secateur.checks import check_at_least, check_from_zero, check_positive, check_share, known_keywords
from secateur.errors import SecateurError


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (check_positive, [1e-300, 1, 1e300], [0, -1, math.inf, math.nan]),
        (check_share, [1e-300, 0.5, 1 - 1e-12], [0, 1, -0.5, 2, math.nan]),
        (lambda name, value: check_at_least(name, value, 3), [3, 3.5, 1e300], [2.999, math.inf, math.nan]),
        (lambda name, value: check_from_zero(name, np.array([1.0, value])), [0, 5, math.inf], [-1e-300, math.nan]),
    ],
)
def test_numbers_out_of_range_are_refused(
    check: Callable[[str, float], None], good: list[float], bad: list[float]
) -> None:
    for value in good:
        check("delta", value)
    for value in bad:
        with pytest.raises(SecateurError, match="delta is"):
            check("delta", value)


PUBLIC = [getattr(sc, name) for name in sc.__all__ if type(getattr(sc, name)) is type(known_keywords)]


@pytest.mark.parametrize("function", PUBLIC, ids=lambda one: one.__name__)
def test_every_public_function_refuses_unknown_keywords(function: Callable[..., object]) -> None:
    with pytest.raises(sc.UsageError, match=rf"{function.__name__}\(\) has no argument 'nothing_like_it'"):
        function(nothing_like_it=3)


def test_the_nearest_keyword_is_named() -> None:
    net = torch.nn.Linear(4, 4)
    with pytest.raises(sc.UsageError) as caught:
        sc.prune(net, torch.zeros(8, 4), {"macs": "50%"}, methd="pfp")  # type: ignore[call-arg]
    assert caught.value.remedy == "did you mean method=?"
    with pytest.raises(sc.UsageError) as caught:
        sc.trace(net, torch.zeros(8, 4), zzz=1)  # type: ignore[call-arg]
    assert caught.value.remedy is not None and caught.value.remedy.startswith("use some of model, example, scope")
