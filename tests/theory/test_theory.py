"""What theory says about real cuts, beside the certificate; what it does not cover is refused."""

from __future__ import annotations

import json
import math
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import secateur as sc
from secateur.channels.program import export
from secateur.errors import SecateurError, UsageError
from secateur.methods.pfp.sensitivity import Sensitivity
from secateur.theory.theory import measured_conditions, theory, units_for


def samples(count: int, seed: int) -> Tensor:
    return torch.rand(count, 12, generator=torch.Generator().manual_seed(seed)) + 0.1


@cache
def network() -> nn.Module:
    """Positive weights and inputs: condition numbers near 1, so that the theorem is not vacuous."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 400), nn.ReLU(), nn.Linear(400, 3)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.abs_()
    return model


@cache
def cut(select: str = "rand") -> sc.Pruned:
    return sc.prune(network(), samples(300, 0), {"params": "70%"}, method="pfp", select=select, delta=1e-3)  # type: ignore[arg-type]


def true_errors(res: sc.Pruned, x: Tensor) -> Tensor:
    with torch.no_grad():
        return ((res.model(x) - network()(x)).norm(dim=1)) / network()(x).norm(dim=1)


@pytest.mark.parametrize("select", ["rand", "derand"])
def test_every_statement_holds_on_fresh_samples(select: str) -> None:
    res, fresh = cut(select), samples(2000, 5)
    found = theory(network(), res, samples(400, 1), eps=0.5)
    true = true_errors(res, fresh)
    for bound in (found.theorem_usual, found.propagated, found.certified):
        assert bound is not None and float((true > bound).float().mean()) <= found.beta
    assert found.theorem_largest is not None and float(true_errors(res, samples(400, 1)).max()) <= found.theorem_largest
    assert found.certified <= found.propagated <= found.theorem_usual * (1 + 1e-6)  # type: ignore[operator]
    assert found.theorem_usual <= found.theorem_largest * 1.2 and found.samples == 400


def test_layers_and_asked_sizes() -> None:
    (row,) = theory(network(), cut(), samples(400, 1), eps=0.9).layers
    kept = len(cut().plan.groups[0].kept)
    assert (row.layer, row.group, row.units, row.kept) == ("2", "0", 400, kept)
    assert row.eps == pytest.approx(cut().rows[0].eps)
    assert 0.9 <= row.usual <= 1.1 and 0.9 <= row.largest <= 1.1  # positive terms, and a bias
    assert row.asked_usual is not None and row.asked_largest is not None
    (stricter,) = theory(network(), cut(), samples(400, 1), eps=0.1).layers
    assert stricter.asked_usual is not None and kept < row.asked_usual <= stricter.asked_usual <= 400


def test_units_for_an_error_against_the_definition() -> None:
    values = torch.tensor([0.5, 0.3, 0.1, 0.1, 0.0], dtype=torch.float64)
    one = Sensitivity(values, sites=7, samples=10)
    for eps in (0.9, 0.5, 0.2):
        draws = math.ceil((2 + 2 * eps / 3) * 1.5 / eps**2 * math.log(8 * 7 / 0.01))
        unique = sum(1 - (1 - p) ** draws for p in (0.5, 0.3, 0.1, 0.1))
        assert units_for(eps, one, delta=0.01, C=1.5) == math.ceil(unique)
    assert units_for(1e-200, one, 0.01, 1.0) == 5  # more draws than a number can hold
    assert units_for(0.5, Sensitivity(values * 0, 7, 10), 0.01, 1.0) == 1


def test_condition_numbers_are_quantiles_over_samples() -> None:
    from secateur.theory.conditions import condition_numbers

    x = samples(40, 3)
    found = measured_conditions(network(), [((x,), {})], x[:1])
    program = export(network(), x[:1])
    each = [condition_numbers(program, [one[None]])["2.weight"] for one in x]
    assert found["2.weight"] == np.quantile(each, 0.95, method="higher")


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 40), nn.Linear(40, 12)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.relu(self.first(x)))


def test_a_network_that_is_no_chain_has_a_propagated_bound() -> None:
    torch.manual_seed(0)
    model = Skip().eval()
    res = sc.prune(model, samples(64, 0), {"params": "80%"}, method="pfp", select="derand")
    found = theory(model, res, samples(200, 1))
    assert found.theorem_largest is None and found.theorem_usual is None
    assert found.propagated is not None and found.certified is not None and found.certified <= found.propagated
    assert any("the main theorem does not apply" in note and "not a chain" in note for note in found.notes)
    assert math.isnan(found.layers[0].largest) and "main theorem" in str(found)


def test_too_few_samples_are_reported() -> None:
    found = theory(network(), cut(), samples(20, 1))
    assert found.theorem_usual is None and found.propagated is None and found.theorem_largest is not None
    assert sum("are needed" in note or "too few" in note for note in found.notes) == 2


def test_classes_that_cannot_change() -> None:
    """Two classes far apart and a small error: the bound proves the class."""
    model = nn.Sequential(nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 2)).eval()
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[2].weight[0].fill_(10.0)
        model[2].weight[1].fill_(0.01)
    x = torch.rand(300, 2, generator=torch.Generator().manual_seed(0)) + 1
    res = sc.prune(model, x[:100], {"params": "90%"}, method="pfp", select="derand")
    found = theory(model, res, x[100:])
    assert found.unchanged == 1.0 and found.propagated is not None and found.propagated < 1


def test_other_methods_and_repairs_are_refused() -> None:
    other = sc.prune(network(), samples(300, 0), {"params": "70%"}, method="ft")
    with pytest.raises(UsageError, match="cut by ft, which guarantees nothing before the cut"):
        theory(network(), other, samples(400, 1))
    repaired = sc.prune(network(), samples(300, 0), {"params": "70%"}, method="pfp", repair=True)
    with pytest.raises(UsageError, match="was repaired"):
        theory(network(), repaired, samples(400, 1))


def test_calibration_samples_are_refused() -> None:
    with pytest.raises(SecateurError, match="were used before"):
        theory(network(), cut(), samples(300, 0))


def test_plain_data_and_iterators() -> None:
    found = theory(network(), cut(), iter(samples(200, 1).split(50)))
    assert json.loads(json.dumps(found.as_dict()))["layers"][0]["layer"] == "2" and found.samples == 200
