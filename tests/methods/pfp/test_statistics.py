"""Statistics of shares: which sample a quantile is, how often the next one exceeds it, what a mean is over."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom
from torch import Tensor

from secateur.errors import UsageError
from secateur.methods.pfp.statistics import Largest, Mean, Quantile, check_kind, statistic
from secateur.network.layer_calls import GroupCall
from secateur.network.modules import Slot


def test_kinds_by_name() -> None:
    assert isinstance(statistic("max", 3, []), Largest)
    assert isinstance(statistic("mean", 3, []), Mean) and isinstance(statistic("rms", 3, []), Mean)
    one = statistic("q0.99", 3, [])
    assert isinstance(one, Quantile) and one.level == Fraction(99, 100) and one.by_sample
    check_kind("q.5")
    with pytest.raises(UsageError, match="the kind of sensitivity is 'q15'"):
        statistic("q15", 3, [])


def quantile_of(samples: Tensor, level: str) -> Tensor:
    """Give a Quantile the largest shares of each sample as if they had been measured."""
    one = Quantile(samples.shape[1], Fraction(level))
    for sample in samples:
        one.best += sample
        one.end_of_batch()
    return one.values()


@given(
    values=st.lists(st.floats(0, 1), min_size=1, max_size=40),
    level=st.integers(1, 99).map(lambda n: f"0.{n:02}"),
)
def test_it_is_the_order_statistic(values: list[float], level: str) -> None:
    found = float(quantile_of(torch.tensor(values, dtype=torch.float64)[:, None], level))
    n = len(values)
    k = -(-int(level[2:]) * (n + 1) // 100)  # in whole numbers
    assert found == sorted(values)[min(n, k) - 1]
    assert found == np.quantile(values, min(1.0, k / n), method="inverted_cdf")


@pytest.mark.parametrize(("level", "samples"), [("0.9", 9), ("0.9", 10), ("0.5", 7), ("0.8", 30)])
def test_the_next_sample_exceeds_it_as_rarely_as_claimed(level: str, samples: int) -> None:
    """20,000 units of independent samples. If the claim holds, this fails with probability 1e-9 at most."""
    trials = 20_000
    draws = torch.rand(samples + 1, trials, generator=torch.Generator().manual_seed(samples), dtype=torch.float64)
    above = int((draws[-1] > quantile_of(draws[:-1], level)).sum())
    chance = 1 - math.ceil(Fraction(level) * (samples + 1)) / (samples + 1)
    assert chance <= 1 - float(level) + 1e-12
    assert binom.ppf(1e-10, trials, chance) <= above <= binom.ppf(1 - 1e-10, trials, chance)


def test_with_too_few_samples_a_quantile_is_the_largest() -> None:
    draws = torch.rand(20, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.equal(quantile_of(draws, "0.99"), draws.amax(0))
    assert torch.equal(quantile_of(draws, "0.96"), draws.amax(0))  # 20.16 of 20
    assert torch.equal(quantile_of(draws, "0.90"), draws.sort(0).values[-2])


def test_a_mean_is_over_all_calls_of_a_layer_and_the_largest_over_layers() -> None:
    one, other = Slot("a.weight", 1), Slot("b.weight", 1)
    units = torch.tensor([0, 1])
    mean = Mean(2, [one, other], squared=False)

    def call(slot: Slot, *rows: list[float]) -> GroupCall:
        x = torch.tensor(rows, dtype=torch.float64)[:, :, None]
        return GroupCall(slot, torch.arange(2), x, torch.ones(1, 2, 1, dtype=torch.float64), (1,), (1,))

    mean.add(call(one, [1, 3]), units, torch.tensor([0, 1]), 1 << 20)
    mean.add(call(one, [1, 1], [0, 1], [0, 0]), units, torch.tensor([0, 1]), 1 << 20)
    mean.end_of_batch()
    assert mean.values().tolist() == pytest.approx([(1 / 4 + 1 / 2) / 4, (3 / 4 + 1 / 2 + 1) / 4])
    mean.add(call(other, [9, 1]), torch.tensor([1, 5]), torch.tensor([0, 1]), 1 << 20)  # 5 is not wanted
    assert mean.values().tolist() == pytest.approx([(1 / 4 + 1 / 2) / 4, 9 / 10])


def test_an_output_that_does_not_depend_on_a_unit_is_no_site_of_it() -> None:
    slot, ones = Slot("a.weight", 0), torch.ones(1, 2, 1, dtype=torch.float64)
    mean = Mean(4, [slot], squared=True)
    for units, x in (([0, 1], [1, 3]), ([2, 3], [1, 1])):
        call = GroupCall(
            slot, torch.tensor(units), torch.tensor([x], dtype=torch.float64)[:, :, None], ones, (1,), (1,)
        )
        mean.add(call, torch.tensor(units), torch.tensor([0, 1]), 1 << 20)
    assert mean.values().tolist() == pytest.approx([1 / 4, 3 / 4, 1 / 2, 1 / 2])


@pytest.mark.parametrize("kind", ["max", "mean", "rms", "q0.5"])
def test_a_network_without_units_has_no_values(kind: str) -> None:
    one = statistic(kind, 0, [])
    one.end_of_batch()
    assert one.values().shape == (0,)
