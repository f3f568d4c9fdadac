"""Trials: estimates to second order against whole runs, outputs that are kept, and the power between the two."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from secateur.network.batches import Call, calls, float_outputs
from secateur.network.divergence import output_divergence
from secateur.network.observer import LayerObserver
from secateur.refit.fisher import Act, Run
from secateur.refit.trials import CHECKS, SPREAD, Measured, Refit, Trials, divergences
from support.cases import Net


def run_of(network: nn.Module) -> Run:
    def run(batch: Call, act: Act) -> list[Tensor]:
        with LayerObserver(network, act):
            return float_outputs(network, batch)

    return run


def network_and_images() -> tuple[Any, Tensor]:
    def run(m: Net, x: Tensor) -> Tensor:
        x = F.relu(m.a(x), inplace=True)  # writes to the output of the layer
        return m.d(F.relu(m.c(x + m.b(x)), inplace=True).mean((2, 3)))

    torch.manual_seed(0)
    layers = {"a": nn.Conv2d(2, 6, 3), "b": nn.Conv2d(6, 6, 1), "c": nn.Conv2d(6, 5, 3), "d": nn.Linear(5, 3)}
    return Net(run, **layers).double(), torch.randn(70, 2, 8, 8).double()


def random_refits(network: nn.Module, size: float) -> list[Refit]:
    """Changes of one layer each, and one of several."""
    found: list[Refit] = []
    for names in (["a"], ["b"], ["c"], ["d"], ["b", "d"]):
        refit: Refit = {}
        for name in names:
            layer: Any = network.get_submodule(name)
            change = size * torch.randn_like(layer.weight)
            refit[f"{name}.weight"] = (layer.weight + change).detach(), size * torch.randn(len(layer.weight)).double()
        found.append(refit)
    return found


@torch.no_grad()
def slow(network: nn.Module, refit: Refit, x: Tensor) -> float:
    other = copy.deepcopy(network)
    for name, (weight, constant) in refit.items():
        layer: Any = other.get_submodule(name.removesuffix(".weight"))
        layer.weight.copy_(weight)
        layer.bias += constant
    return output_divergence([other(x)], [network(x)])


@pytest.mark.parametrize("memory", [1, 1 << 16, 1 << 28])
def test_whole_runs_with_kept_results_are_plain_runs(memory: int) -> None:
    network, x = network_and_images()
    refits = random_refits(network, 0.1)
    batches = list(calls(list(x.split(40))))
    trials = Trials(run_of(network), batches, seed=0, memory=memory)
    found = trials.whole(refits, batches)
    assert found == [pytest.approx(slow(network, refit, x), rel=1e-9) for refit in refits]


def test_estimates_of_small_changes_are_their_divergences() -> None:
    """One direction per sample and 4,000 samples: the relative error is about sqrt(2 / 4000), 2%."""
    network, _ = network_and_images()
    x = torch.randn(4000, 2, 8, 8, generator=torch.Generator().manual_seed(1)).double()
    batches = list(calls(list(x.split(500))))
    refits = random_refits(network, 1e-3)
    trials = Trials(run_of(network), batches, seed=0)
    estimates = trials.estimates(refits, batches)
    assert estimates.shape == (len(refits), len(x))
    for refit, found in zip(refits, estimates.mean(1).tolist(), strict=True):
        assert found == pytest.approx(slow(network, refit, x), rel=0.15)


def test_estimates_by_gradients_of_the_weight_are_those_by_running_the_change(monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = network_and_images()
    batches, refits = list(calls(list(x.split(40)))), random_refits(network, 0.1)
    estimates = []
    for most in (0, 4):
        monkeypatch.setattr("secateur.refit.trials.WEIGHT_GRADIENTS", most)
        estimates.append(Trials(run_of(network), batches, seed=0).estimates(refits, batches))
    torch.testing.assert_close(*estimates)


def test_few_trials_are_all_run_and_many_are_estimated() -> None:
    network, x = network_and_images()
    batches = list(calls(list(x.split(8))))
    trials = Trials(run_of(network), batches, seed=0)
    few = dict(enumerate(random_refits(network, 0.01)))
    assert all(one.whole is not None and one.estimate == 0 for one in trials.measure(few).values())
    many = dict(enumerate(refit for size in (0.001, 0.01, 0.1) for refit in random_refits(network, size)))
    found = trials.measure(many, checks=8)
    assert sum(one.whole is not None for one in found.values()) == 8
    assert all(one.estimate > 0 and one.on_few > 0 for one in found.values())
    assert all(one.whole is None for one in trials.measure(many, checks=0).values())
    more = {(copy, key): refit for copy in range(3) for key, refit in many.items()}
    assert len(more) > CHECKS
    assert sum(one.whole is not None for one in trials.measure(more).values()) == SPREAD
    for key, one in divergences(found).items():  # over six orders of magnitude, by random numbers
        assert 1 / 4 < one / slow(network, many[key], x) < 4


def test_without_gradients_trials_are_run() -> None:
    network, x = network_and_images()

    def run(batch: Call, act: Act) -> list[Tensor]:
        with torch.no_grad():
            return run_of(network)(batch, act)

    refits = dict(enumerate(refit for _ in range(3) for refit in random_refits(network, 0.1)))
    batches = list(calls(list(x.split(20))))
    found = divergences(Trials(run, batches, seed=0).measure(refits, checks=2))
    wanted = {key: pytest.approx(slow(network, refit, x[:40]), rel=1e-9) for key, refit in refits.items()}
    assert found == wanted


def test_an_input_that_is_overwritten_later_leaves_the_estimate_to_a_run() -> None:
    def run(m: Net, x: Tensor) -> Tensor:
        x = m.a(x)
        y = m.b(x)
        return y + x.mul_(2) if not x.requires_grad else y + x.data.mul_(2)

    torch.manual_seed(0)
    network = Net(run, a=nn.Linear(4, 3), b=nn.Linear(3, 3)).double()
    x = torch.randn(40, 4).double()
    change: Any = {"b.weight": ((network.b.weight * 1.1).detach(), torch.zeros(3).double())}
    trials = Trials(run_of(network), list(calls([x])), seed=0)
    found = trials.measure({number: change for number in range(9)}, checks=2)
    assert all(one.whole is not None or one.estimate > 0 for one in found.values())


def test_the_power_that_fits_whole_runs() -> None:
    found = divergences({i: Measured(10.0**-i, 10.0**-i, 5 * 10.0 ** (-1.5 * i) if i != 2 else None) for i in range(5)})
    assert found == {i: pytest.approx(5 * 10.0 ** (-1.5 * i)) for i in range(5)}
    assert divergences({0: Measured(0.3)}) == {0: pytest.approx(0.3)}
    assert divergences({0: Measured(0.0, 0.0, 0.7), 1: Measured(0.2)}) == {0: 0.7, 1: pytest.approx(0.2)}
