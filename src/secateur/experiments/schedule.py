"""Prune ratios of a cascade, step by step."""

from __future__ import annotations

import itertools

from secateur.errors import UsageError

MOST_STEPS = 1000


def hyperharmonic(alpha: float, steps: int) -> tuple[float, ...]:
    """Return the paper's prune ratios 1 - (i + 1)^-alpha: large steps first, ever smaller ones towards the end.

    >>> hyperharmonic(alpha=1.0, steps=3)
    (0.5, 0.6666666666666667, 0.75)

    Args:
        alpha: exponent; a larger one prunes further.
        steps: number of ratios.
    """
    _check(steps)
    if not 0 < alpha:
        raise UsageError(f"alpha is {alpha}", remedy="use a number above 0, such as 1.18")
    return tuple(1 - (i + 1) ** -alpha for i in range(1, steps + 1))


def geometric(last: float, steps: int) -> tuple[float, ...]:
    """Return prune ratios of which each step removes the same share of the rest, up to the ratio `last`.

    >>> geometric(last=0.875, steps=3)
    (0.5, 0.75, 0.875)

    Args:
        last: the last ratio.
        steps: number of ratios.
    """
    _check(steps)
    if not 0 < last < 1:
        raise UsageError(f"last is {last}", remedy="use a ratio between 0 and 1, such as 0.9")
    return tuple(1 - (1 - last) ** (i / steps) for i in range(1, steps + 1))


def check_ratios(ratios: tuple[float, ...]) -> None:
    """Refuse prune ratios that are not between 0 and 1, or not increasing."""
    if not ratios or not all(0 < ratio < 1 for ratio in ratios) or any(b <= a for a, b in itertools.pairwise(ratios)):
        raise UsageError(f"targets is {list(ratios)}", remedy="use increasing prune ratios between 0 and 1")


def _check(steps: int) -> None:
    if not 1 <= steps <= MOST_STEPS:
        raise UsageError(f"steps is {steps}", remedy=f"use a whole number from 1 to {MOST_STEPS}")
