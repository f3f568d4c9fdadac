"""Checks of arguments: numbers, and the names of keywords."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from secateur.errors import SecateurError, UsageError

P = ParamSpec("P")
R = TypeVar("R")


def check_positive(name: str, value: float) -> None:
    _check(0 < value < math.inf, name, value, "above 0")


def check_share(name: str, value: float) -> None:
    _check(0 < value < 1, name, value, "between 0 and 1, both excluded")


def check_at_least(name: str, value: float, least: int) -> None:
    _check(least <= value < math.inf, name, value, f"of at least {least}")


def check_from_zero(name: str, values: npt.NDArray[np.float64]) -> None:
    _check(bool((values >= 0).all()), name, "negative or NaN", "of at least 0")


def known_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse keyword arguments that a function does not have, and name the nearest that it has.

    >>> @known_keywords
    ... def measure(data, *, samples=256): ...
    """
    names = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if unknown := [name for name in kwargs if name not in names]:
            close = difflib.get_close_matches(unknown[0], names, n=1)
            hint = f"did you mean {close[0]}=?" if close else f"use some of {', '.join(names)}"
            raise UsageError(f"{function.__name__}() has no argument {unknown[0]!r}", remedy=hint)
        return function(*args, **kwargs)

    return wrapper


def _check(valid: bool, name: str, found: object, expected: str) -> None:
    if not valid:
        raise SecateurError(f"{name} is {found}", remedy=f"pass a number {expected}")
