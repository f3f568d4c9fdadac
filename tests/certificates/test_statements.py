"""Statements from counts: the bound of each kind, too few samples, and coverage on known distributions."""

from __future__ import annotations

import numpy as np
import pytest

import certificates
from secateur.certificates.bounds import (
    clopper_pearson,
    drop_bound,
    mean_bound,
    order_statistic,
    samples_for_order_statistic,
)
from secateur.certificates.statements import Sample

SAMPLE = Sample(1000, 0.01)


def test_each_statement_has_the_bound_of_its_kind() -> None:
    errors = np.random.default_rng(0).random(1000).tolist()
    rank, shared = order_statistic(1000, 0.1, 0.01), order_statistic(1000, 0.1, 0.002)
    assert rank is not None and shared is not None and shared > rank
    assert SAMPLE.disagreement(7).bound == clopper_pearson(7, 1000, 0.01)
    assert SAMPLE.drop(9, 4).bound == drop_bound(9, 4, 1000, 0.01)
    assert SAMPLE.error(errors, 0.1).bound == sorted(errors)[rank - 1]
    assert SAMPLE.change(errors, 0.1).bound == sorted(errors)[rank - 1]
    assert SAMPLE.layer("fc", errors, 0.1, layers=5).bound == sorted(errors)[shared - 1]
    assert SAMPLE.error_above(0.9, errors).bound == clopper_pearson(sum(e > 0.9 for e in errors), 1000, 0.01)
    shuffled = np.array(errors)[np.random.default_rng(0).permutation(1000)]
    assert SAMPLE.mean("mean change", [3 * e for e in errors], 3.0).bound == pytest.approx(
        3 * mean_bound(shuffled, 0.01), abs=1e-9
    )


def test_a_choice_among_several_costs_delta() -> None:
    chosen = Sample(1000, 0.01, chosen_from=4).drop(9, 4)
    assert chosen.bound == drop_bound(9, 4, 1000, 0.0025)
    assert (chosen.delta, chosen.spent) == (0.01, 0.0025)


def test_sorted_values_are_shuffled_for_the_bound_that_depends_on_the_order() -> None:
    values = np.random.default_rng(0).beta(1, 9, 1000)
    ways = [SAMPLE.mean("mean change", one, 1.0).bound for one in (np.sort(values), np.sort(values)[::-1])]
    assert ways == pytest.approx([SAMPLE.mean("mean change", values, 1.0).bound] * 2, abs=0.01)


def test_a_statement_without_a_bound_says_how_many_samples_are_needed() -> None:
    few = Sample(20, 1e-3).error([0.1] * 20, 0.05)
    assert few.bound is None
    assert f"about {samples_for_order_statistic(0.05, 1e-3)} samples are needed" in few.claim
    tiny = Sample(3, 1e-9).disagreement(0)
    assert tiny.bound is None and "there is no bound" in tiny.claim
    needed = int(tiny.claim.split("about ")[1].split()[0])
    assert clopper_pearson(0, needed, 1e-9) <= 0.5 < clopper_pearson(0, needed - 1, 1e-9)
    drop = Sample(3, 1e-9).drop(0, 0)
    assert drop.bound is None and "samples are needed" in drop.claim
    always = Sample(1000, 1e-3).disagreement(1000)
    assert always.bound is None and "more samples do not help" in always.claim
    zero = Sample(1000, 1e-3).layer("fc", [float("inf")] * 1000, 0.05, 1)
    assert zero.bound is None and zero.observed is None and "was 0 too often" in zero.claim
    full = Sample(1000, 1e-3).mean("mean change", [1.0] * 1000, 1.0)
    assert full.bound is None and "near its range" in full.claim


def test_a_rise_in_accuracy_is_reported_as_one() -> None:
    better = Sample(1000, 0.01).drop(1, 100)
    assert better.bound is not None and better.bound < -0.05
    assert "rises by at least" in better.claim
    shown = float(better.claim.split("at least ")[1].split()[0])
    assert shown <= -100 * better.bound


def test_coverage_and_looseness_on_known_distributions() -> None:
    """A small run of the benchmark; each of the 20 cells has a false alarm with probability at most 1e-4."""
    rng, runs = np.random.default_rng(0), 150
    cells = []
    for delta in (0.05, 0.01):
        cells += [
            certificates.disagreements(500, 0.05, delta, 2000, rng),
            certificates.errors_above(300, 0.1, delta, runs, rng),
            certificates.drops(1000, 0.03, 0.01, delta, runs, rng),
            certificates.drops(100, 0.5, 0.3, delta, runs, rng),
            certificates.quantiles(1000, "exponential", delta, runs, rng),
            certificates.layers(300, 4, delta, runs, rng),
            certificates.means(1000, "mostly 0", False, delta, runs, rng),
            certificates.means(1000, "mostly 0", True, delta, runs, rng),
            certificates.chosen(500, 3, delta, runs, rng),
            certificates.sequences(1000, 0.02, delta, runs, rng),
        ]
    assert all(cell.holds for cell in cells), [cell for cell in cells if not cell.holds]
    assert any(cell.violations for cell in cells)
    assessed = [cell.looseness for cell in cells if cell.assessed]
    assert len(assessed) >= 12
    assert max(assessed) <= 2


def test_a_bound_that_is_too_low_is_detected() -> None:
    """The check can fail: a bound at the estimate itself is false half of the time."""
    cell = certificates.Cell("drop", "", 100, 0.05, violations=1000, runs=2000)
    assert not cell.holds
    assert certificates.Cell("drop", "", 100, 0.05, violations=100, runs=2000).holds
