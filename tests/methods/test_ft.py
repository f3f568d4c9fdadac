"""FT: sums of absolute weights, over every layer that makes the unit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from secateur.errors import SecateurError
from secateur.methods.ft import FT
from support.evidences import IMAGES, PRODUCERS, case_evidence, evidence_of


@pytest.mark.parametrize("name", PRODUCERS)
def test_scores_are_the_sums_of_the_layers_l1_norms(name: str) -> None:
    network, evidence = case_evidence(name)
    found = FT().scores(evidence)
    assert found.keys() == PRODUCERS[name].keys()
    for group, makers in PRODUCERS[name].items():
        for unit, score in enumerate(found[group].tolist()):
            parts = makers(network, unit)
            assert score == pytest.approx(sum(abs(w) for p in parts for w in p.flatten().tolist()), rel=1e-12)


def test_only_units_left_are_scored_in_their_order() -> None:
    kept = {"a": [0, 2, 3, 7]}
    whole, some = FT().scores(case_evidence("plain")[1]), FT().scores(case_evidence("plain", kept=kept)[1])
    assert torch.equal(some["a"], whole["a"][kept["a"]])


def test_biases_and_norms_do_not_count() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3)).double().eval()
    before = FT().scores(evidence_of(network))["0"]
    with torch.no_grad():
        for tensor in (network[0].bias, network[1].weight, network[1].bias):
            tensor.mul_(100).add_(7)
    assert torch.equal(FT().scores(evidence_of(network))["0"], before)


def test_the_smallest_filters_go() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3)).double()
    with torch.no_grad():
        network[0].weight.fill_(1).mul_(torch.tensor([3.0, -1.0, -4.0, 2.0]).view(-1, 1, 1, 1))
    scores = FT().scores(evidence_of(network, IMAGES))["0"]
    assert FT().choose("0", scores, 2).kept == (0, 2)
    assert FT.allocation == "uniform"


def test_weights_that_are_no_numbers_are_refused() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3)).double()
    evidence = evidence_of(network)
    with torch.no_grad():
        network[0].weight[1] = float("nan")
    with pytest.raises(SecateurError, match="0: 1 of 4 values of its scores"):
        FT().scores(evidence)


def test_a_group_without_filters_to_be_seen_stays_out() -> None:
    assert FT().scores(case_evidence("weight_normed", output="graph")[1]).keys() == {"a"}
