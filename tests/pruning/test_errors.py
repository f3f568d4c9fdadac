"""Pruning by error: sizes by the sample complexity, by the main theorem, and with a measured C."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import secateur as sc
from secateur.certificates.bounds import excess
from secateur.errors import SecateurError, UsageError
from secateur.methods.pfp.bounds import expected_unique, sample_complexity
from secateur.methods.pfp.sensitivity import exceedance, measure
from secateur.network.batches import calls
from secateur.theory.theorem import products
from secateur.theory.theory import measured_conditions


def samples(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, 12, generator=torch.Generator().manual_seed(seed)) + 0.1


@cache
def network() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 900), nn.ReLU(), nn.Linear(900, 200), nn.ReLU(), nn.Linear(200, 3)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.abs_()
    return model


def prune(budget: dict[str, object], count: int = 256, **settings: Any) -> sc.Pruned:
    return sc.prune(network(), samples(count), budget, method="pfp", **{"delta": 1e-3, "samples": None, **settings})


@pytest.mark.parametrize("eps", [0.4, 0.7, 0.95])
def test_every_layer_is_sized_for_the_error(eps: float) -> None:
    """Algorithm 1: draws by the sample complexity, then the expected number of distinct channels."""
    res = prune({"eps": eps})
    graph = sc.trace(network(), samples(1))
    found = measure(network(), graph, calls(samples(256)))
    for row in res.rows:
        one = found[row.name]
        draws = sample_complexity(eps, one.mass, one.sites, 1e-3)
        asked = math.ceil(expected_unique(draws, one.values.numpy() / one.mass))
        assert row.after == min(asked, row.before) and row.eps <= eps
    assert res.level > eps or res.after.params == res.before.params


def test_sampling_draws_as_often_as_the_complexity_asks() -> None:
    smaller, larger = (prune({"eps": eps}, select="rand") for eps in (0.95, 0.6))
    assert smaller.after.params < larger.after.params <= smaller.before.params
    assert all(row.eps <= 0.95 for row in smaller.rows)


def test_an_error_of_the_output_is_divided_by_the_theorem() -> None:
    res = prune({"output_eps": 0.95})
    conditions = measured_conditions(network(), list(calls(samples(256))), samples(1))
    found = measure(network(), sc.trace(network(), samples(1)), calls(samples(256)))
    for row, tail in zip(res.rows, products(list(conditions.values()))[1:], strict=True):
        one, own = found[row.name], 0.95 / (2 * 3 * tail)
        draws = sample_complexity(own, one.mass, one.sites, 1e-3 / 3)
        asked = math.ceil(expected_unique(draws, one.values.numpy() / one.mass))
        assert row.after == min(asked, row.before)
    assert any("by the main theorem the error of a layer counts" in note for note in res.notes)
    assert prune({"eps": 0.95}).after.params <= res.after.params


def test_an_error_that_needs_all_units_is_reported() -> None:
    res = prune({"eps": 0.01})
    assert res.after.params == res.before.params and any("no unit was removed" in note for note in res.notes)


@pytest.mark.parametrize("budget", [{"eps": 1.0}, {"eps": 0}, {"eps": "50%"}, {"output_eps": 2}, {"eps": "much"}])
def test_vacuous_errors_are_refused(budget: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="the budget for"):
        prune(budget)


def test_errors_need_the_method_that_guarantees_them() -> None:
    with pytest.raises(UsageError, match="needs sizes by sample complexity"):
        sc.prune(network(), samples(64), {"eps": 0.5})
    with pytest.raises(UsageError, match="needs sizes by sample complexity"):
        prune({"eps": 0.5}, sensitivity="mean")
    with pytest.raises(UsageError, match="steps is 2"):
        prune({"eps": 0.5}, steps=2)
    with pytest.raises(UsageError, match="in eps and in params"):
        prune({"eps": 0.5, "params": "50%"})
    with pytest.raises(UsageError, match="for the method pfp"):
        sc.prune(network(), samples(64), {"params": "50%"}, C="measured")
    with pytest.raises(UsageError, match="C is 'guessed'"):
        prune({"params": "50%"}, C="guessed")


class Joined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 40), nn.Linear(40, 12)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.relu(self.first(x)))


def test_the_theorem_refuses_a_network_that_is_no_chain() -> None:
    with pytest.raises(SecateurError, match="not a chain of layers"):
        sc.prune(Joined().eval(), samples(64), {"output_eps": 0.5}, method="pfp")


def test_c_is_measured_on_samples_beside_the_calibration() -> None:
    res = prune({"params": "60%"}, count=600, C="measured", samples=100)
    needed = math.ceil(math.log(1e-3 / 2) / math.log1p(-0.05))
    order = torch.randperm(600, generator=torch.Generator().manual_seed(0))
    used, fresh = samples(600)[order[:100]], samples(600)[order[100 : 100 + needed]]
    graph = sc.trace(network(), samples(1))
    found = measure(network(), graph, calls(used))
    each = exceedance(network(), graph, calls(fresh), found)
    C = excess(torch.stack(list(each.values())).amax(0).numpy(), 0.05, 5e-4)
    assert res.method.settings()["C"] == pytest.approx(C) and C > 1
    assert res.method.settings()["delta"] == 5e-4 and any(f"C is {C:.4g}" in note for note in res.notes)
    assert res.agreement is not None and res.agreement.samples == 256  # of the rest


def test_too_few_samples_for_c_are_refused() -> None:
    with pytest.raises(SecateurError, match=r"needs 149 samples beside those for calibration, there are 100"):
        prune({"params": "60%"}, count=200, C="measured", samples=100)


def test_c_is_infinite_where_a_channel_was_never_active() -> None:
    model = nn.Sequential(nn.Linear(12, 30), nn.ReLU(), nn.Linear(30, 3)).eval()
    x = samples(600)
    order = torch.randperm(600, generator=torch.Generator().manual_seed(0))
    x[order[:100], 0] = 0.0  # the first channel is active for samples that calibration does not see
    with torch.no_grad():
        model[0].weight.abs_()
        model[0].bias.zero_()
        model[0].weight[0].zero_()
        model[0].weight[0, 0] = 1.0
    with pytest.raises(SecateurError, match="C is infinite"):
        sc.prune(model, x, {"params": "60%"}, method="pfp", samples=100, C="measured", delta=1e-3)
