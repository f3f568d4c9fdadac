"""Checks of numeric arguments."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from secateur.errors import SecateurError


def check_positive(name: str, value: float) -> None:
    _check(0 < value < math.inf, name, value, "above 0")


def check_share(name: str, value: float) -> None:
    _check(0 < value < 1, name, value, "between 0 and 1, both excluded")


def check_at_least(name: str, value: float, least: int) -> None:
    _check(least <= value < math.inf, name, value, f"of at least {least}")


def check_from_zero(name: str, values: npt.NDArray[np.float64]) -> None:
    _check(bool((values >= 0).all()), name, "negative or NaN", "of at least 0")


def _check(valid: bool, name: str, found: object, expected: str) -> None:
    if not valid:
        raise SecateurError(f"{name} is {found}", remedy=f"pass a number {expected}")
