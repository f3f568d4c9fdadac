"""The choice among the cut network, the repaired one, and the one with new norm statistics."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from secateur.network.batches import fitted_samples, held_out_samples, hold_out
from secateur.refit.choice import Judged, Nearest, nearest


def normed(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).eval()


def changed(network: nn.Module, size: float) -> nn.Module:
    other = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += size * torch.randn_like(parameter)
    return other


PARTS = hold_out([((torch.randn(40, 4, generator=torch.Generator().manual_seed(1)),), {})])


def chosen(small: nn.Module, repaired: nn.Module, original: nn.Module) -> Nearest:
    judged = [Judged.of(original, small, repaired, batch) for batch in held_out_samples(PARTS)]
    return nearest(small, repaired, judged, fitted_samples(PARTS))


def test_the_repaired_network_is_chosen_if_it_is_nearer() -> None:
    original = normed()
    small, repaired = changed(original, 0.5), changed(original, 0.001)
    found = chosen(small, repaired, original)
    assert found.network is repaired and found.repaired and not found.norms and found.after < found.before


def test_otherwise_the_network_stays_as_cut() -> None:
    original = normed()
    small, repaired = changed(original, 0.001), changed(original, 2.0)
    found = chosen(small, repaired, original)
    assert not found.repaired and not found.norms and found.after == found.before
    for own, given in zip(found.network.parameters(), small.parameters(), strict=True):
        assert torch.equal(own, given) and own is not given


def test_new_norm_statistics_are_taken_where_they_help() -> None:
    original = normed()
    x = PARTS[0].batch[0][0]
    with torch.no_grad():
        original[1].running_mean.copy_(original[0](x).mean(0))
        original[1].running_var.copy_(original[0](x).var(0))
    broken = copy.deepcopy(original)
    broken[1].running_var.mul_(50.0)
    found = chosen(changed(original, 1.0), broken, original)
    assert found.norms and found.repaired and found.after == pytest.approx(0, abs=0.05)


def test_outputs_of_a_run_on_more_samples_are_taken_only_in_the_same_shapes() -> None:
    networks, x = (normed(), normed(1), normed(2)), torch.randn(5, 4)
    known = torch.zeros(5, 3), torch.ones(5, 3)
    taken = Judged.of(*networks, ((x,), {}), ([known[0]], [known[1]]))
    assert taken.wanted[0] is known[0] and taken.repaired[0] is known[1]
    again = Judged.of(*networks, ((x,), {}), ([known[0][:, :2]], [known[1][:, :2]]))
    assert torch.equal(again.wanted[0], networks[0](x)) and torch.equal(again.repaired[0], networks[2](x))
