"""Provable filter pruning: sizes agree with the bounds, choices with the sizes, and the promise with real draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import secateur as sc
from secateur.certificates.bounds import excess
from secateur.embedded import digits, lenet5
from secateur.errors import UsageError
from secateur.methods.pfp.bounds import draws_for, eps_of, expected_unique, sample_complexity
from secateur.methods.pfp.method import PFP, SELECTS, Select
from secateur.methods.pfp.sampling import derand, generator, rand
from secateur.methods.pfp.sensitivity import Sensitivity, exceedance, measure

SAMPLING: tuple[Select, ...] = ("rand", "partial", "pivotal")


def group(units: int = 40, silent: int = 0, sites: int = 100) -> Sensitivity:
    """Sensitivities of very different sizes, the first `silent` of them 0."""
    values = torch.linspace(-3, 0, units, dtype=torch.float64).exp()
    values[:silent] = 0
    return Sensitivity(values, sites, samples=128)


@pytest.mark.parametrize("silent", [0, 7])
def test_levels_fall_as_the_group_grows(silent: int) -> None:
    one = group(silent=silent)
    levels = PFP().levels(one)
    assert levels.shape == (40,)
    assert levels[0] == math.inf and (levels[1:] < math.inf).all()
    assert (np.diff(levels[1:]) <= 0).all()
    assert (levels[: 40 - silent] > 0).all()
    assert (levels[40 - silent :] == 0).all()  # all that speak are there: no error is left


def test_eps_is_that_of_the_draws_which_give_the_size() -> None:
    one, method = group(), PFP(delta=1e-6, C=1.3)
    p = one.values.numpy() / one.mass
    for count in (1, 10, 39):
        eps = float(method.eps(one, count))
        (draws,) = draws_for([count], p)
        assert expected_unique(draws, p) == pytest.approx(count)
        assert eps == pytest.approx(eps_of(draws, one.mass, one.sites, 1e-6, 1.3))
        assert sample_complexity(eps, one.mass, one.sites, 1e-6, 1.3) - draws == pytest.approx(0.5, abs=0.5 + 1e-6)


def test_eps_grows_with_what_makes_the_promise_harder() -> None:
    base = PFP(delta=1e-6).eps(group(), 20)
    assert PFP(delta=1e-9).eps(group(), 20) > base
    assert PFP(delta=1e-6, C=2).eps(group(), 20) > base
    assert PFP(delta=1e-6).eps(group(sites=1000), 20) > base


@pytest.mark.parametrize("select", ["derand", "pivotal"])
@pytest.mark.parametrize("count", [1, 7, 39, 40])
def test_derand_and_pivotal_keep_exactly_as_many(select: Select, count: int) -> None:
    chosen = PFP(select=select).choose("conv1", group(), count)
    assert len(chosen.kept) == len(chosen.scales) == count


@pytest.mark.parametrize("select", ["rand", "partial"])
@pytest.mark.parametrize("count", [3, 20, 35])
def test_rand_and_partial_keep_as_many_on_average(select: Select, count: int) -> None:
    """400 seeds against the expectation at the whole number of draws; six standard errors."""
    one = group()
    sizes = [len(PFP(select=select, seed=seed).choose("conv1", one, count).kept) for seed in range(400)]
    p = one.values.numpy() / one.mass
    expected = expected_unique(np.floor(draws_for([count], p)), p).item()
    assert count - 1 < expected <= count
    assert abs(np.mean(sizes) - expected) <= 6 * np.std(sizes, ddof=1) / math.sqrt(400) + 1e-9


def test_partial_keeps_the_largest_as_they_are() -> None:
    one = Sensitivity(torch.tensor([0.0005] * 500 + [1.0] + [0.0005] * 500, dtype=torch.float64), sites=1, samples=128)
    found = [PFP(select="partial", delta=0.5, seed=seed).choose("fc1", one, 250) for seed in range(20)]
    for chosen in found:
        scales = dict(zip(chosen.kept, chosen.scales, strict=True))
        assert scales.pop(500) == 1.0
        assert min(scales.values()) > 1.0
    assert np.mean([len(chosen.kept) for chosen in found]) == pytest.approx(250, abs=10)


@pytest.mark.parametrize("select", SELECTS)
@pytest.mark.parametrize("count", [33, 36, 40])
def test_where_all_that_speak_may_stay_nothing_is_drawn(select: Select, count: int) -> None:
    one = group(silent=7)
    assert PFP(select=select).choose("conv1", one, count) == derand(one.values.numpy(), count)


@pytest.mark.parametrize("select", SELECTS)
def test_a_group_that_never_speaks(select: Select) -> None:
    one = group(silent=40)
    method = PFP(select=select)
    assert (method.levels(one) == 0).all()
    chosen = method.choose("conv1", one, 3)
    assert (chosen.kept, chosen.scales) == ((0, 1, 2), (1.0, 1.0, 1.0))
    assert method.bound(one, chosen) == 0


@pytest.mark.parametrize("select", SAMPLING)
def test_the_choice_depends_on_seed_and_name_only(select: Select) -> None:
    one = group()
    chosen = PFP(select=select, seed=3).choose("conv1", one, 20)
    assert PFP(select=select, seed=3).choose("conv1", one, 20) == chosen
    assert PFP(select=select, seed=4).choose("conv1", one, 20) != chosen
    assert PFP(select=select, seed=3).choose("conv2", one, 20) != chosen


def test_the_bound_is_what_was_dropped() -> None:
    one = group()
    chosen = derand(one.values.numpy(), 30)
    assert PFP(C=1.5).bound(one, chosen) == pytest.approx(1.5 * one.values[:10].sum().item())


@pytest.mark.parametrize(
    "wrong", [{"select": "best"}, {"delta": 0.0}, {"delta": 1.0}, {"C": 0.5}, {"C": math.inf}, {"C": math.nan}]
)
def test_errors(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(UsageError, match=f"^{name} is "):
        PFP(**wrong)


def test_the_promise_holds_on_a_trained_layer() -> None:
    """fc1 -> fc2 of LeNet-5: 200 draws, each with a digit of its own, violate the promise no more often than delta.

    delta = 0.1 is spent as 0.05 for the draw, 0.04 for digits beyond C, and 0.01 for a C that is too small. An exact
    binomial test: were the true rate just 0.1, it would fail for one seed in a thousand. As a control, it does
    reject 1 draw for every 200 of the bound.
    """
    model = lenet5().double()
    sample, fresh = digits("calibration")[0][:256].double(), digits("test")[0].double()
    graph = sc.trace(model, sample[:1], keep=["conv1", "conv2"])
    found = measure(model, graph, [((sample,), {})])
    ratios = exceedance(model, graph, [((fresh[:300],), {})], found)["fc1"].numpy()
    one, eps = found["fc1"], 0.5
    C = excess(ratios, level=0.04, delta=0.01)
    m = sample_complexity(eps, one.mass, one.sites, 0.05, C)
    inputs = list[Tensor]()
    model.fc2.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    with torch.no_grad():
        model(fresh[-200:])
    weight = model.fc2.weight.detach()

    def violations(draws: int) -> int:
        broken = 0
        for number, a in enumerate(inputs[0]):
            chosen = rand(one.values.numpy(), draws, generator(0, f"draw {number}"))
            kept = list(chosen.kept)
            c = weight * a  # [outputs, channels]: what each adds
            z_hat = c[:, kept] @ torch.tensor(chosen.scales, dtype=torch.float64)
            broken += bool(((z_hat - c.sum(1)).abs() > eps * c.abs().sum(1)).any())
        return broken

    def chance(draws: int) -> float:
        return stats.binomtest(violations(draws), 200, 0.1, alternative="greater").pvalue

    assert chance(m) >= 1e-3
    assert chance(m // 200) < 1e-3
