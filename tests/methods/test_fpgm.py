"""FPGM: distances to all other filters; what lies in the middle goes first."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from secateur.methods.fpgm import FPGM
from support.evidences import PRODUCERS, case_evidence, evidence_of, filter_rows


def summed_distances(rows: list[list[float]]) -> list[float]:
    return [sum(math.dist(one, other) for other in rows) for one in rows]


@pytest.mark.parametrize("name", PRODUCERS)
def test_scores_are_sums_of_distances(name: str) -> None:
    network, evidence = case_evidence(name)
    found = FPGM().scores(evidence)
    assert found.keys() == PRODUCERS[name].keys()
    for group, makers in PRODUCERS[name].items():
        rows = filter_rows(network, makers, range(len(found[group])))
        assert found[group].tolist() == pytest.approx(summed_distances(rows.tolist()), rel=1e-12)


def test_only_units_left_count() -> None:
    kept = [0, 2, 3, 7]
    network, evidence = case_evidence("plain", kept={"a": kept})
    rows = network.a.weight.detach()[kept].flatten(1)
    assert FPGM().scores(evidence)["a"].tolist() == pytest.approx(summed_distances(rows.tolist()), rel=1e-12)


def test_the_filter_in_the_middle_goes_first_though_it_is_not_small() -> None:
    network = nn.Sequential(nn.Linear(2, 5), nn.Linear(5, 2)).double()
    with torch.no_grad():  # a square around (10, 10), and its centre
        network[0].weight.copy_(torch.tensor([[9.0, 9], [11, 9], [10, 10], [9, 11], [11, 11]]))
    scores = FPGM().scores(evidence_of(network, torch.randn(4, 2).double()))["0"]
    assert int(scores.argmin()) == 2
    assert FPGM().choose("0", scores, 4).kept == (0, 1, 3, 4)


def test_pairs_of_twins_do_not_disturb_the_sums() -> None:
    network = nn.Sequential(nn.Linear(50, 40), nn.Linear(40, 2)).double()
    with torch.no_grad():
        network[0].weight[20:] = network[0].weight[:20] * (1 + 1e-13)
    rows = network[0].weight.detach()
    scores = FPGM().scores(evidence_of(network, torch.randn(4, 50).double()))["0"]
    assert scores.tolist() == pytest.approx(summed_distances(rows.tolist()), rel=1e-7)


def test_filters_that_are_nearly_alike_keep_their_digits() -> None:
    network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)).double()
    with torch.no_grad():
        network[0].weight.copy_(1000 + 1e-8 * torch.tensor([[0.0, 0], [1, 0], [3, 0]], dtype=torch.float64))
    scores = FPGM().scores(evidence_of(network, torch.randn(4, 2).double()))["0"]
    assert scores.tolist() == pytest.approx([4e-8, 3e-8, 5e-8], rel=1e-4)
