"""Budgets: what a user may write, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateur.errors import UsageError
from secateur.pruning.budget import Budget, Limit, parse


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ({"params": "40%"}, Budget(params=Limit(40, True))),
        ({"params": " 12.5 % "}, Budget(params=Limit(12.5, True))),
        ({"params": "100%"}, Budget(params=Limit(100, True))),
        ({"macs": 2.1e9}, Budget(macs=Limit(2.1e9, False))),
        ({"macs": "2.1G"}, Budget(macs=Limit(2.1e9, False))),
        ({"macs": "2.1e9"}, Budget(macs=Limit(2.1e9, False))),
        ({"params": "300k"}, Budget(params=Limit(300_000, False))),
        ({"params": "0.3 M"}, Budget(params=Limit(300_000, False))),
        ({"params": 300_000}, Budget(params=Limit(300_000, False))),
        ({"params": np.int64(300_000)}, Budget(params=Limit(300_000, False))),
        ({"params": np.float32(512)}, Budget(params=Limit(512, False))),
        ({"latency_ms": 8.0}, Budget(latency_ms=Limit(8, False))),
        ({"latency_ms": 0.5}, Budget(latency_ms=Limit(0.5, False))),
        ({"latency_ms": "8ms"}, Budget(latency_ms=Limit(8, False))),
        ({"latency": "8ms"}, Budget(latency_ms=Limit(8, False))),
        ({"latency": "0.5s"}, Budget(latency_ms=Limit(500, False))),
        ({"latency": "50%"}, Budget(latency_ms=Limit(50, True))),
        (
            {"params": "40%", "macs": "1G", "latency": "50%"},
            Budget(Limit(40, True), Limit(1e9, False), Limit(50, True)),
        ),
    ],
)
def test_what_a_user_may_write(written: dict[str, object], wanted: Budget) -> None:
    assert parse(written) == wanted


@pytest.mark.parametrize(
    "value",
    [
        *("0%", "150%", "-5%", "nan%", "%", "", "lots", "1.2.3", "40%%", "2.1T", "8ms", "-3k"),
        *(0, -1, math.nan, math.inf, True, None, [40], 10**400),
    ],
)
@pytest.mark.parametrize("key", ["params", "macs"])
def test_values_that_mean_nothing_are_refused(key: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"the budget for {key} is ") as caught:
        parse({key: value})
    assert caught.value.remedy


@pytest.mark.parametrize("value", [8.0, "8", "8k", "0ms", "0%", "101%", -1, math.nan, None])
def test_a_time_needs_its_unit(value: object) -> None:
    with pytest.raises(UsageError, match="the budget for latency is ") as caught:
        parse({"latency": value})
    assert "%" in str(caught.value.remedy)


@pytest.mark.parametrize("value", [0.4, 1.0, 1, "0.4", "0.0004k"])
def test_a_fraction_could_mean_two_things(value: object) -> None:
    with pytest.raises(UsageError) as caught:
        parse({"params": value})
    wanted = "'100%'" if value in (1.0, 1) else "'40%'"
    assert f"write {wanted}" in str(caught.value)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"parms": "40%"}, "did you mean 'params'"),
        ({"latency_s": 1}, "did you mean 'latency_ms'|did you mean 'latency'"),
        ({"flops": "40%"}, "use params, macs, latency_ms, latency"),
        ({3: "40%"}, "unknown resource 3"),
        ({}, "the budget is empty"),
        ("40%", "pass a mapping"),
        ({"latency": "50%", "latency_ms": 8.0}, "the latency twice"),
    ],
)
def test_a_budget_is_a_mapping_of_known_resources(written: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(written)


def test_ceilings_are_of_the_original() -> None:
    budget = parse({"params": "40%", "macs": "2k", "latency": "50%"})
    assert budget.ceilings(before_params=1000, before_macs=5000) == {"params": 400, "macs": 2000}
    assert parse({"macs": "50%"}).ceilings(1000, 5000) == {"macs": 2500}
    assert budget.latency_ms and budget.latency_ms.of(12.0) == 6.0


@given(st.integers(1, 100), st.integers(0, 10**12))
def test_whole_percentages_are_exact(percent: int, before: int) -> None:
    (ceiling,) = parse({"params": f"{percent}%"}).ceilings(100 * before, 0).values()
    assert ceiling == percent * before


def test_a_budget_prints_as_one_line() -> None:
    budget = parse({"params": "40%", "macs": "2.1G", "latency_ms": 8.5})
    assert str(budget) == "params 40%, macs 2,100,000,000, latency_ms 8.5"
