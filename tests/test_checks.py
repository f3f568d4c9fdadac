"""Numbers out of range are refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from secateur.checks import check_at_least, check_from_zero, check_positive, check_share
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
