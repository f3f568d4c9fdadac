"""Prune ratios of a cascade, against their formulas."""

from __future__ import annotations

import itertools

import pytest

from secateur.errors import UsageError
from secateur.experiments.schedule import check_ratios, geometric, hyperharmonic


@pytest.mark.parametrize("alpha", [0.36, 1.0, 1.5])
def test_hyperharmonic_is_the_formula_of_the_paper(alpha: float) -> None:
    ratios = hyperharmonic(alpha, 15)
    assert ratios == tuple(1 - (i + 1) ** -alpha for i in range(1, 16))
    check_ratios(ratios)


def test_geometric_keeps_the_same_share_in_each_step() -> None:
    ratios = geometric(0.9, 5)
    left = [1.0, *(1 - ratio for ratio in ratios)]
    assert [b / a for a, b in itertools.pairwise(left)] == pytest.approx([0.1**0.2] * 5)
    assert ratios[-1] == pytest.approx(0.9)
    check_ratios(ratios)


@pytest.mark.parametrize(
    "call",
    [
        lambda: hyperharmonic(0, 3),
        lambda: hyperharmonic(1, 0),
        lambda: geometric(1.0, 3),
        lambda: hyperharmonic(1, 10**10),
    ],
)
def test_invalid_arguments_are_refused(call: object) -> None:
    with pytest.raises(UsageError):
        call()  # type: ignore[operator]


@pytest.mark.parametrize("ratios", [(), (0.5, 0.5), (0.5, 0.4), (0.0, 0.5), (0.5, 1.0)])
def test_ratios_that_do_not_increase_are_refused(ratios: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="targets"):
        check_ratios(ratios)
