"""How far to prune, step by step: the prune ratios of a cascade."""

from __future__ import annotations

import itertools

from secateur.errors import UsageError


def hyperharmonic(alpha: float, steps: int) -> tuple[float, ...]:
    """The paper's ratios 1 - (i + 1)^-alpha: large steps first, ever smaller ones towards the end.

    >>> hyperharmonic(alpha=1.0, steps=3)
    (0.5, 0.6666666666666667, 0.75)
    """
    _check(steps)
    if not 0 < alpha:
        raise UsageError(f"alpha is {alpha}", remedy="give a number above 0, such as 1.18")
    return tuple(1 - (i + 1) ** -alpha for i in range(1, steps + 1))


def geometric(last: float, steps: int) -> tuple[float, ...]:
    """Every step removes the same part of what is left, until the ratio `last`.

    >>> geometric(last=0.875, steps=3)
    (0.5, 0.75, 0.875)
    """
    _check(steps)
    if not 0 < last < 1:
        raise UsageError(f"last is {last}", remedy="give a ratio between 0 and 1, such as 0.9")
    return tuple(1 - (1 - last) ** (i / steps) for i in range(1, steps + 1))


def check_ratios(ratios: tuple[float, ...]) -> None:
    """Refuse ratios that are none, or that do not rise."""
    if not ratios or not all(0 < ratio < 1 for ratio in ratios):
        raise UsageError(f"targets is {list(ratios)}", remedy="give prune ratios between 0 and 1")
    if any(b <= a for a, b in itertools.pairwise(ratios)):
        raise UsageError(f"targets is {list(ratios)}", remedy="give rising ratios: each step prunes further")


def _check(steps: int) -> None:
    if steps < 1:
        raise UsageError(f"steps is {steps}", remedy="give a whole number from 1 up")
